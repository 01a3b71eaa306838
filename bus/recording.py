"""Recordings: a run's committed events in files, to be read, searched, checked and repaired (C9)."""

import re
import threading
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from railbus.schemas.errors import ArgumentError, RecordingError
from railbus.schemas.events import Committed, Gap
from railbus.schemas.hooks import Hook
from railbus.schemas.lifecycle import verify

from .about import About
from .observer import hooks_named
from .reader import Segment
from .segment import COLUMNS, LogLine, acts

NAME = re.compile(r"(\d{3,})-(\d{8,})\.mcap")
FOLDER = "events"
PAUSE = 0.05  # seconds between two looks at a file that is being written

Entry: TypeAlias = Committed | Gap


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `Recording.verify` has found to be right.

    Attributes:
        sealed: every file was closed by its writer.
        ended: the run's terminal event is there.
    """

    run_id: str
    incarnation: int
    events: int
    gaps: int
    segments: int
    bytes: int
    sealed: bool
    ended: bool


def segment_name(incarnation: int, first: int) -> str:
    """The name of the file that begins with event `first`."""
    return f"{incarnation:03d}-{first:08d}.mcap"


def segments_of(path: Path) -> dict[int, list[Path]]:
    """The files of a recording by incarnation, each in the order of events.

    Args:
        path: a run's directory, its folder of events, or one file.

    Raises:
        RecordingError: there are none.
    """
    if path.is_file():
        found = NAME.fullmatch(path.name)
        return {int(found[1]) if found else 0: [path]}
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files: dict[int, list[tuple[int, Path]]] = {}
    for one in folder.iterdir() if folder.is_dir() else ():
        if named := NAME.fullmatch(one.name):
            files.setdefault(int(named[1]), []).append((int(named[2]), one))
    if not files:
        raise RecordingError(f"there is no recording in '{path}'")
    return {number: [one for _, one in sorted(files[number])] for number in sorted(files)}


class Recording:
    """A run's committed events, read from its files; iterate it, again and again.

    Yields `Committed` entries in order, and a `Gap` where the recorder had lost events. A file that
    its writer could not close is read as far as it is whole. A recording is untrusted input:
    nothing in it is unpacked or built before its size was checked.

    Args:
        path: a run's directory, its `events` folder, or one `.mcap` file.
        incarnation: which of the processes that carried the run on; the last one by default.

    Attributes:
        about: the run as it was set up: plan, participants, configuration.
        notes: versions, device and revision, by topic.
        incarnations: those that the directory holds.

    Raises:
        RecordingError: there is none, or it is damaged where it says what it is. While iterating:
            at damage; what came before is right.
    """

    def __init__(self, path: str | Path, incarnation: int | None = None) -> None:
        self.path = Path(path)
        found = segments_of(self.path)
        self.incarnations = tuple(found)
        wanted = self.incarnations[-1] if incarnation is None else incarnation
        if wanted not in found:
            raise ArgumentError(f"incarnation must be one of {self.incarnations}, got {wanted!r}")
        self.incarnation = wanted
        with Segment(found[wanted][0]) as first:
            self.about: About = first.about
            self.notes = first.notes
            self.unsealed = first.footer is None

    @property
    def files(self) -> list[Path]:
        """Its files, in the order of events; a run that goes on adds to them."""
        return segments_of(self.path)[self.incarnation]

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def entries(
        self,
        hooks: Collection[Hook | str] | None = None,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        step: int | None = None,
        time: float | None = None,
    ) -> Iterator[Entry]:
        """Its entries from some place on, found without reading what comes before.

        Args:
            hooks: only events of these.
            seq: from this event on.
            epoch: from the first event of this epoch on.
            step: from the `on_train_step_begin` of this step of training on.
            time: from this second of the run on.

        Raises:
            ArgumentError: more than one place, or an unknown hook.
            RecordingError: at damage.
        """
        wanted = hooks_named(hooks)
        place = _place(seq=seq, epoch=epoch, step=step, time=time)
        entries = self._all() if place is None else self._from(*place)
        return (one for one in entries if isinstance(one, Gap) or one.event.hook in wanted)

    def follow(
        self, hooks: Collection[Hook | str] | None = None, patience: float | None = None
    ) -> Iterator[Entry]:
        """All its entries, those that are still to be written too, up to the run's end.

        Args:
            patience: seconds without news after which it ends; None waits for ever.
        """
        wanted = hooks_named(hooks)
        return (
            one
            for one in self._followed(patience)
            if isinstance(one, Gap) or one.event.hook in wanted
        )

    def log(self) -> Iterator[LogLine]:
        """The lines of Railbus' own log."""
        for path in self.files:
            with Segment(path) as segment:
                yield from (one for one in segment.items() if isinstance(one, LogLine))

    def verify(self) -> Report:
        """Read everything and check it: sums, counts, order, and the lifecycle's grammar (C4).

        Raises:
            RecordingError, SequenceError: naming the first thing that is wrong.
        """
        counts = {Committed: 0, Gap: 0}
        ended = False

        def counted() -> Iterator[Committed]:
            nonlocal ended
            for entry in self:
                counts[type(entry)] += 1
                if isinstance(entry, Committed):
                    ended = self.about.plan.ends_with(entry.event.hook)
                    if not counts[Gap]:
                        yield entry

        stream = counted()
        verify(self.about.plan, stream, whole=False)
        for _ in stream:
            pass
        sealed = [_checked(path) for path in self.files]
        return Report(
            run_id=self.about.run_id,
            incarnation=self.incarnation,
            events=counts[Committed],
            gaps=counts[Gap],
            segments=len(sealed),
            bytes=sum(path.stat().st_size for path in self.files),
            sealed=all(sealed),
            ended=ended,
        )

    def _all(self) -> Iterator[Entry]:
        expected: int | None = None
        for path in self.files:
            with self._segment(path) as segment:
                expected = yield from _contiguous(segment, None, expected)

    def _from(self, column: str, value: int) -> Iterator[Entry]:
        """From the first entry whose `column` has reached `value` on."""
        files, number = self.files, COLUMNS.index(column)
        at, offset = 0, None
        for place, path in enumerate(files):
            with self._segment(path) as segment:
                rows = segment.index()
            if not len(rows) or (place and rows[0, number] >= value):
                break
            row = max(int(np.searchsorted(rows[:, number], value)) - 1, 0)
            at, offset = place, int(rows[row, 0])
        reached, expected = False, None
        for path in files[at:]:
            with self._segment(path) as segment:
                for entry in _contiguous(segment, offset, expected):
                    reached = reached or _reaches(entry, column, value)
                    if reached:
                        yield entry
                    expected = after(entry)
            offset = None

    def _followed(self, patience: float | None) -> Iterator[Entry]:
        expected: int | None = None
        since, done, never = None, 0, threading.Event()
        waited = 0.0
        while patience is None or waited < patience:
            path = self.files[done]
            with self._segment(path) as segment:
                for entry in _contiguous(segment, since, expected):
                    yield entry
                    waited, expected = 0.0, after(entry)
                    if isinstance(entry, Committed) and self.about.plan.ends_with(entry.event.hook):
                        return
                since = segment.end
                over = segment.footer is not None
            if over and len(self.files) > done + 1:
                since, done = None, done + 1
                continue
            never.wait(PAUSE)
            waited += PAUSE

    def _segment(self, path: Path) -> Segment:
        segment = Segment(path)
        here, there = segment.about, self.about
        if (here.run_id, here.incarnation) != (there.run_id, there.incarnation):
            segment.__exit__()
            raise RecordingError(f"'{path}' belongs to run {here.run_id!r}, not {there.run_id!r}")
        return segment


def _place(**places: float | None) -> tuple[str, int] | None:
    given = {name: value for name, value in places.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise ArgumentError(f"one place at a time, got {', '.join(given)}")
    name, value = next(iter(given.items()))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ArgumentError(f"{name} must be a number of at least 0, got {value!r}")
    return ("time_ns", round(value * 1e9)) if name == "time" else (name, int(value))


def _reaches(entry: Entry, column: str, value: int) -> bool:
    if isinstance(entry, Gap):
        return column == "seq" and entry.last >= value
    event = entry.event
    match column:
        case "seq":
            return event.seq >= value
        case "time_ns":
            return event.time_ns >= value
        case "epoch":
            return entry.epoch >= value
    return event.hook.mode == "train" and entry.step >= value


def after(entry: Entry) -> int:
    """The `seq` of the event that comes next."""
    return 1 + (entry.last if isinstance(entry, Gap) else entry.event.seq)


def _contiguous(
    segment: Segment, since: int | None, expected: int | None
) -> Generator[Entry, None, int | None]:
    """The entries of one file, each the next after the one before."""
    for item in segment.items(since):
        if isinstance(item, LogLine):
            continue
        first = item.first if isinstance(item, Gap) else item.event.seq
        if expected is None and since is None:
            named = NAME.fullmatch(segment.path.name)
            expected = first if named is None else int(named[2])
        if expected is not None and first != expected:
            raise RecordingError(
                f"expected event #{expected}, got #{first} in '{segment.path}': events are missing"
            )
        expected = after(item)
        yield item
    return expected


def _checked(path: Path) -> bool:
    """Whether a file was closed; then all that it holds is what was put there."""
    with Segment(path) as segment:
        if segment.footer is None:
            return False
        segment.check()
        held = sum(2 if isinstance(one, Committed) and acts(one) else 1 for one in segment.items())
        if held != segment.messages():
            raise RecordingError(
                f"'{path}' holds {held} messages, its writer counted {segment.messages()}"
            )
    return True
