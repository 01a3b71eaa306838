"""What a recording tells of its run, gathered in one pass whose memory does not grow."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from railbus.bus.recording import Recording
from railbus.schemas.errors import RecordingError, SnapshotError
from railbus.schemas.events import Committed, Gap, StopRequest
from railbus.schemas.hooks import Hook

from .plot import Curve
from .readings import MeanLoss, loss_of
from .scalars import results_of

MOST = 10  # of each kind of things that are kept to be shown
ENDS = frozenset((Hook.TRAIN_END, Hook.EXCEPTION))


class EpochSurvey:
    """One epoch of a run that trains, or a whole evaluation.

    Attributes:
        number: of the epoch; 0 for an evaluation.
        loss: mean of its steps.
        results: of its validation.
        seconds: from its first event to its last; `stepping`: to the end of its last step.
        pause, pause_at: the longest time between two of its events, and the `seq` of the later.
    """

    def __init__(self, entry: Committed) -> None:
        self.number, self.loss = entry.epoch, MeanLoss()
        self.steps = 0
        self.results: Mapping[str, float] = {}
        self.pause, self.pause_at = 0.0, entry.event.seq
        self._began = self._last = self._stepped = entry.event.time_ns

    @property
    def seconds(self) -> float:
        """The time that it took."""
        return (self._last - self._began) / 1e9

    @property
    def stepping(self) -> float:
        """The time that its steps took."""
        return (self._stepped - self._began) / 1e9

    def step(self, entry: Committed) -> None:
        """One of its steps has ended."""
        self.steps += 1
        self._stepped = entry.event.time_ns

    def see(self, entry: Committed) -> None:
        """One of its events."""
        pause = (entry.event.time_ns - self._last) / 1e9
        if pause > self.pause:
            self.pause, self.pause_at = pause, entry.event.seq
        self._last = entry.event.time_ns


class Survey:
    """Reads a recording and keeps what `railbus show` tells.

    Attributes:
        events, gaps, stops, detached: how many, and the first of them.
        first, last: events; None where it holds none.
        epochs: the first and the last ones; `hidden` were in between.
        curve: the losses of the steps.
        ended: what the terminal event says; None without one.
        damage: what has ended the reading early.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.events = self.gap_count = self.stop_count = self.hidden = 0
        self.gaps: list[Gap] = []
        self.stops: list[StopRequest] = []
        self.detached: list[tuple[str, int]] = []
        self.first: Committed | None = None
        self.last: Committed | None = None
        self.step = self.epoch = 0
        self.ended: Mapping[str, Any] | None = None
        self.damage: RecordingError | SnapshotError | None = None
        self.curve = Curve()
        self._head: list[EpochSurvey] = []
        self._tail: deque[EpochSurvey] = deque(maxlen=MOST)
        self._open: EpochSurvey | None = None
        plan = recording.about.plan
        self._step_end = Hook.TRAIN_STEP_END if plan.mode == "train" else Hook.EVAL_STEP_END
        try:
            for entry in recording:
                self._take(entry)
        except (RecordingError, SnapshotError) as error:
            self.damage = error

    @property
    def epochs(self) -> list[EpochSurvey]:
        """Those that are kept, in order."""
        return [*self._head, *self._tail]

    def _take(self, entry: Committed | Gap) -> None:
        if isinstance(entry, Gap):
            self.gap_count += 1
            if len(self.gaps) < MOST:
                self.gaps.append(entry)
            return
        self.events += 1
        self.first, self.last = self.first or entry, entry
        hook, decision = entry.event.hook, entry.decision
        if hook.mode != "eval":
            self.step, self.epoch = entry.step, entry.epoch
        if decision.stops:
            self.stop_count += len(decision.stops)
            self.stops += decision.stops[: max(MOST - len(self.stops), 0)]
        self.detached += [(name, entry.event.seq) for name in decision.detached]
        self._in_epoch(entry)
        if self.recording.about.plan.ends_with(hook):
            self.ended = entry.event.cb_params

    def _in_epoch(self, entry: Committed) -> None:
        hook = entry.event.hook
        lone = self._step_end is Hook.EVAL_STEP_END
        if hook in ENDS or not (entry.epoch or lone):
            return
        if self._open is None or self._open.number != entry.epoch:
            self._begin(EpochSurvey(entry))
        epoch = self._open
        assert epoch is not None
        epoch.see(entry)
        if hook is self._step_end:
            epoch.step(entry)
            loss = loss_of(entry.event.cb_params)
            if loss is not None:
                epoch.loss.add(loss)
                self.curve.add(loss)
        elif hook is Hook.EVAL_END:
            epoch.results = results_of(entry.event.cb_params)

    def _begin(self, epoch: EpochSurvey) -> None:
        self._open = epoch
        if len(self._head) < MOST:
            self._head.append(epoch)
            return
        self.hidden += len(self._tail) == MOST
        self._tail.append(epoch)


def table(rows: list[list[str]]) -> Iterator[str]:
    """Lines with columns of equal width, numbers at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
