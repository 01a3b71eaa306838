"""What a run's ring does not hold any more, out of its recording (C8, C9)."""

import logging
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Protocol
from weakref import ref

from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Committed, Gap
from railbus.schemas.hooks import Hook

from .folder import being_written
from .observer import Observer
from .recording import Entry, Recording, after

logger = logging.getLogger(__name__)

NEWS = 0.5  # seconds without news after which it is asked whether there will be any
NEAR = 1024  # events of the ring that an observer surely has room for once it has read the rest
POLL = 0.1  # seconds between two looks whether an observer is still there


class Log(Protocol):
    """A run whose newest events may be in a ring."""

    run_id: str

    @property
    def following(self) -> int:
        """The seq of the event that comes next."""

    def holds(self, since: int) -> bool:
        """Whether its ring has every event from `since` on."""

    def join(self, observer: Observer, since: int) -> None:
        """Feed `observer` from `since` on, without a recording."""


class Page:
    """Collects the first entries that it wants; a listener that does not stay.

    Attributes:
        items: `Committed` entries, and a `Gap` in the place of those that are gone.
        following: the seq after the last of them.

    Raises:
        ArgumentError: for an unknown hook, or a number below 1.
    """

    def __init__(
        self, run_id: str, since: int, hooks: Collection[str] | None, every: int, limit: int
    ) -> None:
        self.run_id: str | None = run_id
        self.closed = False
        self.items: list[Entry] = []
        self.following, self.every = since, every
        self.wants = Observer(hooks, every).wants
        self._left = limit

    def offer(self, entry: Committed) -> None:
        """An entry that it wants."""
        if not self.closed:
            self.items.append(entry)
            self.following = entry.event.seq + 1
            self._left -= 1
            self.closed = not self._left

    def miss(self, run_id: str, first: int, last: int, reason: str = "retention") -> None:
        """Events that are gone; a page tells of one gap, and ends before the next."""
        self.closed = self.closed or any(isinstance(item, Gap) for item in self.items)
        if not self.closed:
            self.items.append(Gap(run_id=run_id, first=first, last=last, reason=reason))
            self.following = last + 1

    def close(self) -> None:
        """Nothing follows."""
        self.closed = True

    def read(self, recording: Recording) -> None:
        """Collect from a recording; damage in it is a gap."""
        sieve = Sieve(self.following, self.every)
        try:
            for entry in recording.entries(seq=sieve.at):
                if self.closed:
                    return
                sieve.pass_on(entry, self)
                if not self.closed:
                    self.following = sieve.next
        except (RecordingError, OSError) as error:
            first = _damaged(recording.path, sieve.next, error)
            self.miss(recording.about.run_id, first, first, "damage")


class Taker(Protocol):
    """Who gets what a sieve lets pass."""

    def wants(self, hook: Hook, ordinal: int, step: int = 0, epoch: int = 0) -> bool:
        """Whether it takes the `ordinal`-th event of `hook`."""

    def offer(self, entry: Committed) -> None:
        """An event that it wants."""

    def miss(self, run_id: str, first: int, last: int, reason: str = "retention") -> None:
        """Events that the recording does not have."""


class Sieve:
    """Someone's way through a recording, from event `since` on.

    Where `every` counts events it begins with the run's first one.

    Attributes:
        at: the seq of the entry to read next.
    """

    def __init__(self, since: int, every: int) -> None:
        self.at = since if every == 1 else 0
        self._since = since
        self._ordinals: Counter[Hook] = Counter()

    @property
    def next(self) -> int:
        """The seq up to which everything was passed on."""
        return max(self.at, self._since)

    def pass_on(self, entry: Entry, taker: Taker) -> None:
        """The next entry: `taker` gets it, if it wants it."""
        first, self.at = self.next, after(entry, None) or 0
        if isinstance(entry, Gap):
            if entry.last >= self._since:
                taker.miss(entry.run_id, max(entry.first, first), entry.last, entry.reason)
            return
        hook = entry.event.hook
        self._ordinals[hook] += 1
        wanted = taker.wants(hook, self._ordinals[hook], entry.step, entry.epoch)
        if wanted and entry.event.seq >= self._since:
            taker.offer(entry)


class Feed:
    """Gives an observer a recording in a thread of its own, until it has caught up with the ring.

    It waits for the observer to read, so that nothing is lost; the run does not notice.

    Args:
        incarnation: which of the processes that carried the run on.
    """

    def __init__(
        self, log: Log, path: Path, incarnation: int, observer: Observer, since: int
    ) -> None:
        self._log, self._path, self._incarnation = log, path, incarnation
        self._observer = ref(observer)
        self._sieve = Sieve(since, observer.every)

    def start(self) -> None:
        """Begin, beside whoever calls."""
        name = f"railbus feed of {self._log.run_id}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def wants(self, hook: Hook, ordinal: int, step: int = 0, epoch: int = 0) -> bool:
        """Whether the observer does; not when it has left."""
        observer = self._observer()
        return observer is not None and observer.wants(hook, ordinal, step, epoch)

    def offer(self, entry: Committed) -> None:
        """Hand `entry` over once there is room for it."""
        if (observer := self._ready(entry)) is not None:
            observer.offer(entry)

    def miss(self, run_id: str, first: int, last: int, reason: str = "retention") -> None:
        """Tell of what is lost, after what came before it was read."""
        if (observer := self._ready(None)) is not None:
            observer.miss(run_id, first, last, reason)

    def _serve(self) -> None:
        try:
            recording = Recording(self._path, self._incarnation)
            while self._follow(recording):
                pass
        except (RecordingError, OSError) as error:
            first = _damaged(self._path, self._sieve.next, error)
            self.miss(self._log.run_id, first, first, "damage")
            self._sieve.at = first + 1
        if (observer := self._ready(None)) is not None:
            self._log.join(observer, self._sieve.next)

    def _follow(self, recording: Recording) -> bool:
        """Hand over what there is; whether there may be more."""
        going, before = being_written(recording.files[-1]), self._sieve.at
        for entry in recording.follow(patience=NEWS, seq=before):
            self._sieve.pass_on(entry, self)
            if self._gone() or self._caught_up():
                return False
            if isinstance(entry, Committed) and recording.about.plan.ends_with(entry.event.hook):
                return False
        return not self._gone() and (going or self._sieve.at > before)

    def _caught_up(self) -> bool:
        """Whether the ring has what is left, and the observer has read what it was given."""
        since = self._sieve.next
        near = self._log.following - since < NEAR and self._log.holds(since)
        return near and self._ready(None) is not None and self._log.holds(since)

    def _gone(self) -> bool:
        observer = self._observer()
        return observer is None or observer.closed

    def _ready(self, entry: Committed | None) -> Observer | None:
        """The observer once it has room for `entry`, or for None has read all; None: it has left."""
        while (observer := self._observer()) is not None and not observer.closed:
            if observer.admits(entry, POLL):
                return observer
            del observer
        return None


def _damaged(path: Path, seq: int, error: Exception) -> int:
    """The event from which on nothing can be read."""
    logger.warning("'%s' cannot be read from event #%d on: %s", path, seq, error)
    return seq
