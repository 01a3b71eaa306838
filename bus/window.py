"""The newest events, as the log and its observers hold them."""

from collections import deque
from collections.abc import Collection, Sequence

from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed

RING_EVENTS = 4096
RING_BYTES = 64 * 2**20


class Window:
    """The newest events, bounded in number and in snapshot bytes; the oldest make room."""

    def __init__(self, events: int, size: int) -> None:
        if events < 1 or size < 1:
            raise ArgumentError(f"a buffer holds at least 1 event and 1 byte, got {events}, {size}")
        self.entries: deque[Committed] = deque()
        self._events, self._size, self._used = events, size, 0

    def push(self, entry: Committed) -> Sequence[Committed]:
        """Take in `entry`; returns what had to leave for it, oldest first."""
        self.entries.append(entry)
        self._used += len(entry.event.snapshot)
        if self._used <= self._size:
            return () if len(self.entries) <= self._events else (self.pop(),)
        left = []
        while len(self.entries) > self._events or (
            self._used > self._size and len(self.entries) > 1
        ):
            left.append(self.pop())
        return left

    def fits(self, entry: Committed) -> bool:
        """Whether `push` would take in `entry` without loss."""
        if not self.entries:
            return True
        used = self._used + len(entry.event.snapshot)
        return len(self.entries) < self._events and used <= self._size

    def clear(self) -> Collection[Committed]:
        """Remove and return all entries, oldest first."""
        entries, self.entries, self._used = self.entries, deque(), 0
        return entries

    def pop(self) -> Committed:
        """Remove and return the oldest entry."""
        entry = self.entries.popleft()
        self._used -= len(entry.event.snapshot)
        return entry
