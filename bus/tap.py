"""A lossless listener of a log: every committed entry, as it is, for who writes a run down (C9)."""

import threading
import time
from collections import deque

from railbus.schemas.events import Committed, Gap
from railbus.schemas.hooks import Hook

from .observer import INTERRUPT_POLL
from .rule import Rule
from .window import RING_BYTES

GATHER = 0.02  # seconds from a first entry to the taking of all that have come by then
CROWD = 512  # entries that are taken at once
AGE = 0.4  # seconds that an entry may wait before the run waits for it


class Tap:
    """Committed entries on their way to one thread that takes them; none is ever lost.

    The run waits while more than `lag` entries (or 64 MiB of snapshots) are not `done`, or one of
    them has not been for 0.4 seconds. An interrupt of that wait takes nothing away: the entry is queued before it.

    Args:
        lag: 0 lets the run wait until each entry is done.

    Attributes:
        lost, last: as an `Observer` has them; none is lost.
    """

    rules: tuple[Rule, ...] = ()
    lost = 0

    def __init__(self, lag: int) -> None:
        self.run_id: str | None = None
        self.closed = False
        self.last = -1
        self._lag = lag
        self._queue: deque[Committed | Gap] = deque()
        self._behind, self._bytes = 0, 0
        self._taken_at = self._oldest = 0.0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._arrived, self._crowded = threading.Event(), threading.Event()

    def wants(self, hook: Hook, ordinal: int, step: int = 0, epoch: int = 0) -> bool:
        """It wants all."""
        return True

    def offer(self, entry: Committed) -> None:
        """An event was committed; called by the log."""
        with self._lock:
            self.last = entry.event.seq
            self._bytes += len(entry.event.snapshot)
            self._put(entry)
            if self._waits():
                self._crowded.set()
                while self._waits() and not self._room.wait(INTERRUPT_POLL):
                    pass

    def miss(self, run_id: str, first: int, last: int) -> None:
        """Events from before it came are gone."""
        with self._lock:
            self._put(Gap(run_id=run_id, first=first, last=last, reason="retention"))

    def take(self, timeout: float | None) -> list[Committed | Gap] | None:
        """What has come, after a moment for more; `[]` after `timeout` seconds, None at the end."""
        if not self._arrived.wait(timeout):
            return []
        self._crowded.wait(GATHER)
        with self._lock:
            self._taken_at = time.monotonic()
            taken = list(self._queue)
            self._queue.clear()
            if not self.closed:
                self._arrived.clear()
                self._crowded.clear()
        return taken or None

    def done(self, taken: list[Committed | Gap]) -> None:
        """What was taken is where it should be."""
        with self._lock:
            self._behind -= len(taken)
            self._oldest = self._taken_at  # those left came after it
            self._bytes -= sum(
                len(one.event.snapshot) for one in taken if isinstance(one, Committed)
            )
            self._room.notify_all()

    def close(self) -> None:
        """Nothing follows; what has come can still be taken."""
        with self._lock:
            self.closed = True
            self._room.notify_all()
            self._arrived.set()
            self._crowded.set()

    def _put(self, item: Committed | Gap) -> None:
        self._queue.append(item)
        if not self._behind:
            self._oldest = time.monotonic()
        self._behind += 1
        if len(self._queue) == 1:
            self._arrived.set()
        if len(self._queue) >= CROWD or self._lag < 2:
            self._crowded.set()

    def _waits(self) -> bool:
        if self.closed or not self._behind:
            return False
        late = time.monotonic() - self._oldest > AGE
        return late or self._behind > self._lag or self._bytes > RING_BYTES
