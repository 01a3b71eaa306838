"""Observers that take committed entries as they are, decisions and acks included."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from railbus.bus.about import About
from railbus.bus.log import EventLog
from railbus.bus.tap import Tap
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed, Gap
from railbus.schemas.hooks import Mode

from .callback import Callback
from .participant import Tally
from .watcher import Watcher

IDLE = 0.25  # seconds without an entry after which `idle` is called


class Follower(Callback):
    """An observer of the whole log, in a thread of its own: `take` in the place of hooks.

    It loses nothing: the run waits while more than `lag` entries wait for it.

    Attributes:
        tallies: what each callback of the run has cost, by name; there in `over`.
        path: the directory of a recording that it writes; None for another follower.
    """

    observes = True
    lag = 4096
    path: Path | None = None
    tallies: Mapping[str, Tally] = {}

    def set_up(self, about: About) -> None:
        """A run begins; called in the thread that trains."""

    def take(self, entry: Committed | Gap) -> None:
        """The next entry of the log."""

    def idle(self) -> None:
        """Nothing has come for a moment."""

    def over(self, failed: bool) -> None:
        """Nothing follows: the run has ended, or `take` or `idle` has failed."""


class FollowerWatcher(Watcher):
    """Runs one `Follower` of the list; with a `lag` of 0 the run waits for each entry."""

    least_lag = 0

    def __init__(
        self,
        name: str,
        callback: Callback,
        stop_requested: Callable[[Mode], bool],
        replays: bool = False,
        tallies: Callable[[], Mapping[str, Tally]] = dict,
    ) -> None:
        assert isinstance(callback, Follower)
        super().__init__(name, callback, stop_requested, replays)
        if self.role.hooks or callback.needs:
            raise ArgumentError(f"{name} takes entries; it cannot have hooks or needs beside")
        self._follower, self._tallies = callback, tallies

    def start(self, log: EventLog, request_stop: Callable[[str, str], None]) -> None:
        """Follow the run from its first event."""
        if log.about is not None:
            self._follower.set_up(log.about)
            log.recording = log.recording or self._follower.path
        super().start(log, request_stop)

    def _listener(self) -> Tap:
        assert self.callback.lag is not None
        return Tap(self.callback.lag)

    def _serve(self) -> None:
        tap, follower = self._observer, self._follower
        assert isinstance(tap, Tap)
        whole = True
        while whole and not self._over and (entries := tap.take(IDLE)) is not None:
            whole = self._try(entries)
            tap.done(entries)
        follower.tallies = self._tallies()
        try:
            follower.over(failed=not whole)
        except BaseException as error:
            if whole:
                self._fail("its end", error)

    def _try(self, entries: Sequence[Committed | Gap]) -> bool:
        """Hand entries over; whether it has not failed."""
        since = time.perf_counter()
        entry: Committed | Gap | None = None
        try:
            for entry in entries:
                self._follower.take(entry)
                self._next = 1 + (entry.last if isinstance(entry, Gap) else entry.event.seq)
            self._follower.idle()
        except BaseException as error:
            self._fail(entry.event if isinstance(entry, Committed) else "a gap", error)
            return False
        self.tally.events += len(entries)
        self.tally.seconds += time.perf_counter() - since
        return True
