"""A recorded run in a test: look at it, change it, feed it to callbacks, at once or step by step."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self

from railbus.bus.about import About
from railbus.bus.stream import Stream
from railbus.schemas.errors import ArgumentError, BusClosed
from railbus.schemas.events import Ack, Committed, Event, Gap, StopRequest
from railbus.schemas.hooks import Hook

from .callback import Callback
from .difference import diff
from .faults import Fault, Faulty, crash, delay, drop, duplicate, meaning
from .feed import Until
from .goldens import Golden
from .recorded import Load
from .replay import replay
from .replayed import Replayed
from .stepper import Stepper


class Got:
    """What callbacks made of a run; of one that is fed step by step, the rest is fed when asked."""

    def __init__(
        self, run: Stream, replayed: Callable[[], Replayed], golden: Callable[[], Golden]
    ) -> None:
        self._run, self._replayed, self._golden = run, replayed, golden

    @property
    def replayed(self) -> Replayed:
        """All that came of it."""
        return self._replayed()

    @property
    def acks(self) -> tuple[Ack, ...]:
        """Every ack of the callbacks in order, plain oks included."""
        return self.replayed.acks

    @property
    def stop(self) -> StopRequest | None:
        """The first stop of training that was asked."""
        return self.replayed.stop

    @property
    def lines(self) -> tuple[str, ...]:
        """What they printed."""
        return self.replayed.lines

    def assert_acks_match(
        self, *, ignore: Collection[str] = (), tolerances: Mapping[str, float] | None = None
    ) -> None:
        """Compare every ack with the golden beside the test: JSON Lines, one ack a line.

        `--railbus-goldens=new` writes goldens that are missing, `update` those that differ, too.

        Args:
            ignore: fields of acks that do not count, for example `"stop.reason"`.
            tolerances: by key of `cb_params`, how far numbers of a patch may be apart.

        Raises:
            AssertionError: naming event, callback and field, with the acks around it.
        """
        __tracebackhide__ = True
        self._golden().check(self.acks, ignore, tolerances or {})

    def assert_as_recorded(self, tolerances: Mapping[str, float] | None = None) -> None:
        """Compare with the recording itself: events, acks, decisions (C10).

        Raises:
            AssertionError: with the first difference and the events around it.
        """
        __tracebackhide__ = True
        found = diff(self._run, self.replayed, tolerances=tolerances)
        if found is not None:
            raise AssertionError(found.report())


class RecordedRun:
    """A recorded run in a test, with the faults that the test adds.

    `into` feeds it to callbacks, from its first event. `step`, `until` and `goto` walk through it:
    through the events alone, or, after `into(..., paused=True)`, feeding them one by one.
    """

    def __init__(self, stream: Stream, golden: Callable[[], Golden]) -> None:
        self._stream, self._golden = stream, golden
        self._faults: list[Fault] = []
        self._walk: Stepper | None = None
        self._items: Iterator[Committed | Gap] | None = None

    @property
    def about(self) -> About:
        """The run as it was set up."""
        return self._stream.about

    def __iter__(self) -> Iterator[Committed | Gap]:
        return iter(Faulty(self._stream, self._faults))

    def into(
        self,
        *callbacks: Callback,
        paused: bool = False,
        until: Until = None,
        only: Collection[Hook | str] | None = None,
        network: Load | None = None,
    ) -> Got:
        """Feed the run to callbacks, by the recorded clock and without JAX; see `replay`.

        Args:
            paused: wait before the first event; `step`, `until` and `goto` feed.
            until: the last event to feed.
            only: hooks to deliver.
            network: gives the network's parameters at an event.

        Raises:
            BaseException: what a callback with the policy `raise` has raised.
        """
        options: dict[str, Any] = {"until": until, "only": only, "network": network}
        run = Faulty(self._stream, self._faults)
        self.close()
        if paused:
            self._walk = Stepper(run, callbacks, options)
            return Got(run, self._walk.finish, self._golden)
        replayed = replay(run, list(callbacks), gaps="skip", **options)
        if replayed.error is not None:
            raise replayed.error
        return Got(run, lambda: replayed, self._golden)

    def step(self) -> Committed | None:
        """The next event, fed to the callbacks if there are any; None after the last."""
        if self._walk is not None:
            return self._walk.step()
        self._items = iter(self) if self._items is None else self._items
        return next((one for one in self._items if isinstance(one, Committed)), None)

    def until(self, at: int | str | Callable[[Event], bool]) -> Committed:
        """Go on to an event: its `seq`, the next of a hook, or the next that a function is true of.

        Raises:
            ArgumentError: it does not come any more.
        """
        means = meaning(at)
        while (entry := self.step()) is not None:
            if means(entry.event):
                return entry
        raise ArgumentError(f"the run has no such event from here on: {at!r}")

    def goto(
        self,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        step: int | None = None,
        time: float | None = None,
    ) -> Committed:
        """Go on to the first event that has reached a number, an epoch, a step of training or second.

        Raises:
            ArgumentError: not one of them is given, or it does not come any more.
        """
        given = [one for one in (seq, epoch, step, time) if one is not None]
        if len(given) != 1:
            raise ArgumentError("goto takes one of seq, epoch, step and time")
        while (entry := self.step()) is not None:
            event = entry.event
            at_step = entry.step if event.hook.mode == "train" else -1
            now = event.time_ns / 1e9
            here = (seq, event.seq), (epoch, entry.epoch), (step, at_step), (time, now)
            if any(wanted is not None and reached >= wanted for wanted, reached in here):
                return entry
        raise ArgumentError(f"the run ends before {given[0]!r}")

    def drop(self, at: Until) -> Self:
        """Lose an event: a gap stands in its place (C8)."""
        return self._add(drop(at))

    def duplicate(self, at: Until) -> Self:
        """Let an event come twice; all that follow have the next number."""
        return self._add(duplicate(at))

    def delay(self, at: Until, seconds: float) -> Self:
        """Let an event and all that follow come so much later, by the run's own clock."""
        return self._add(delay(at, seconds))

    def crash(self, at: Until, reason: str = "RuntimeError: crashed by the test") -> Self:
        """Let the run fail at an event: that is not committed, and `on_exception` ends the run."""
        return self._add(crash(at, reason))

    def close(self) -> None:
        """End a walk that was not walked to its end."""
        walk, self._walk, self._items = self._walk, None, None
        if walk is not None:
            walk.close()

    def _add(self, fault: Fault) -> Self:
        if self._walk is not None or self._items is not None:
            raise BusClosed("the run is under way; add faults before into, step, until and goto")
        self._faults.append(fault)
        return self
