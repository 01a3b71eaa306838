"""The committed log of a run, which feeds its observers."""

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from weakref import ref

from railbus.schemas.codes import Code
from railbus.schemas.events import Committed
from railbus.schemas.hooks import Hook

from .about import About
from .control import Control
from .observer import Observer
from .past import Feed
from .slot import Slot
from .window import RING_BYTES, RING_EVENTS, Window


class Listener(Protocol):
    """Who gets a log's entries: an `Observer` or a `Tap`."""

    run_id: str | None
    closed: bool

    def wants(self, hook: Hook, ordinal: int, step: int = 0, epoch: int = 0) -> bool:
        """Whether it takes the `ordinal`-th event of `hook`."""

    def offer(self, entry: Committed) -> None:
        """An event that it wants was committed."""

    def miss(self, run_id: str, first: int, last: int) -> None:
        """Events from before it attached are gone."""

    def close(self) -> None:
        """Nothing follows."""


class EventLog:
    """The committed events of one run: the newest in a ring, all of them to the observers.

    Attributes:
        about: the run as it was set up; None before it begins.
        control: what reaches the run from outside; None before it begins and once it has ended.
        slots: where participants of other processes sit, by name; None before it begins.
        recording: the directory where all of it is written down; None where nobody does.
    """

    def __init__(self, run_id: str, events: int = RING_EVENTS, size: int = RING_BYTES) -> None:
        self.run_id = run_id
        self.about: About | None = None
        self.control: Control | None = None
        self.slots: Mapping[str, Slot] | None = None
        self.recording: Path | None = None
        self.ended = False
        self._ring = Window(events, size)
        self._ordinals: Counter[Hook] = Counter()
        self._observers: tuple[ref[Listener], ...] = ()
        self._lock = threading.Lock()

    def append(self, entry: Committed) -> None:
        """`entry` was committed; observers that want it get it."""
        hook, step, epoch = entry.event.hook, entry.step, entry.epoch
        with self._lock:
            self._ring.push(entry)
            self._ordinals[hook] = ordinal = self._ordinals[hook] + 1
            observers = self._observers
        interrupt: BaseException | None = None
        for reference in observers:
            observer = reference()
            if observer is None or observer.closed:
                self._detach(reference)
            elif observer.wants(hook, ordinal, step, epoch):
                try:
                    observer.offer(entry)
                except BaseException as error:  # of a wait; the others get the event all the same
                    interrupt = error
        if interrupt is not None:
            raise interrupt

    def attach(self, observer: Listener, since: int | None) -> None:
        """Feed `observer` from event `since` on, out of the ring or, before that, the recording.

        Only an observer of this one run is fed from its recording.
        """
        path, about = self.recording, self.about
        single = isinstance(observer, Observer) and observer.run_id == self.run_id
        if path is None or about is None or since is None or not single or self.holds(since):
            self.join(observer, since)
            return
        assert isinstance(observer, Observer)
        Feed(self, path, about.incarnation, observer, since).start()

    def holds(self, since: int) -> bool:
        """Whether the ring has every event from `since` on."""
        with self._lock:
            entries = self._ring.entries
            return not entries or entries[0].event.seq <= since

    def join(self, observer: Listener, since: int | None) -> None:
        """Feed `observer` out of the ring only; what that does not hold is a gap."""
        with self._lock:
            if since is not None:
                self._backfill(observer, since)
            if not self.ended:
                self._observers += (ref(observer),)
            elif observer.run_id == self.run_id:
                observer.close()

    def close(self) -> None:
        """The run has ended; no event follows."""
        with self._lock:
            self.ended, self.control = True, None
            observers, self._observers = self._observers, ()
        for reference in observers:
            observer = reference()
            if observer is not None and observer.run_id == self.run_id:
                observer.close()
        for slot in (self.slots or {}).values():
            slot.dismiss(Code.ENDED)

    @property
    def head(self) -> Committed | None:
        """The newest entry; None before the first."""
        with self._lock:
            return self._ring.entries[-1] if self._ring.entries else None

    def entries(self) -> list[Committed]:
        """What the ring holds, oldest first."""
        with self._lock:
            return list(self._ring.entries)

    @property
    def following(self) -> int:
        """The seq of the event that comes next."""
        head = self.head
        return 0 if head is None else head.event.seq + 1

    def _backfill(self, observer: Listener, since: int) -> None:
        entries = self._ring.entries
        if entries and entries[0].event.seq > since:
            observer.miss(self.run_id, since, entries[0].event.seq - 1)
        ordinals = self._ordinals - Counter(entry.event.hook for entry in entries)
        for entry in entries:
            hook = entry.event.hook
            ordinals[hook] += 1
            wanted = observer.wants(hook, ordinals[hook], entry.step, entry.epoch)
            if entry.event.seq >= since and wanted:
                observer.offer(entry)

    def _detach(self, gone: ref[Listener]) -> None:
        with self._lock:
            self._observers = tuple(one for one in self._observers if one is not gone)
