"""Everyone who is connected to one service: what they ask for, and their leaving."""

from collections.abc import Collection
from threading import Condition
from weakref import WeakSet

from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Event
from railbus.schemas.frames import pack

from .bus import EventBus
from .log import EventLog
from .observer import Observer
from .peer import Peer

BUFFER_EVENTS = 4096
BUFFER_BYTES = 16 * 2**20
KEPT = 1024  # packed events
KEPT_SIZE = 16 << 10  # bytes of an event that is worth keeping packed


class Audience:
    """The observers of a service, and its participants.

    Attributes:
        closing: nobody is taken in any more.
    """

    def __init__(self, bus: EventBus) -> None:
        self.bus = bus
        self.closing = False
        self._watching: WeakSet[Observer | Peer] = WeakSet()
        self._change = Condition()
        self._packed: dict[tuple[str, int, int], bytes] = {}

    def __len__(self) -> int:
        return len(self._watching)

    def enter(
        self, log: EventLog, since: int, hooks: Collection[str] | None = None, every: int = 1
    ) -> Observer:
        """Someone watches a run from event `since` on, until `leave`.

        Raises:
            ArgumentError: for an unknown hook, or a `since` that the run has not come to.
        """
        check_since(log, since)
        sizes = {"buffer": BUFFER_EVENTS, "buffer_bytes": BUFFER_BYTES}
        observer = self.bus.observe(hooks, every, since, run_id=log.run_id, **sizes)
        self.add(observer)
        return observer

    def add(self, one: Observer | Peer) -> None:
        """It is closed with the service, until `leave`."""
        with self._change:
            self._watching.add(one)
            if self.closing:
                one.close()

    def leave(self, one: Observer | Peer) -> None:
        """It has gone."""
        one.close()
        with self._change:
            self._watching.discard(one)
            self._change.notify_all()

    def packed(self, event: Event) -> bytes:
        """`event` as a message has it, packed once for all who watch; from one event loop."""
        key = event.run_id, event.incarnation, event.seq
        found = self._packed.get(key)
        if found is None:
            found = pack(event)
            if len(found) <= KEPT_SIZE:
                self._packed[key] = found
                if len(self._packed) > KEPT:
                    del self._packed[next(iter(self._packed))]
        return found

    def close(self, seconds: float) -> bool:
        """Let everyone read what is buffered and go; from any other thread than the service's.

        Returns:
            Whether all of them have left within `seconds`.
        """
        with self._change:
            self.closing = True
            watching = list(self._watching)
        for one in watching:
            one.close()
        with self._change:
            return self._change.wait_for(lambda: not self._watching, seconds)


def check_since(log: EventLog, since: int) -> None:
    """Refuse a `since` that the run has not come to.

    Raises:
        ArgumentError: it is one.
    """
    if since > log.following:
        raise ArgumentError(f"since may be {log.following} at most, the next event, got {since}")
