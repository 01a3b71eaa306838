"""An observer, which reads committed events at its own pace (C8)."""

import threading
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Self

import anyio
from anyio import NoEventLoopError
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed, Event, Gap
from railbus.schemas.hooks import Hook

from .rule import Rule, passes
from .window import RING_BYTES, RING_EVENTS, Window

INTERRUPT_POLL = 0.05  # seconds between two looks for an interrupt where a run waits


def hooks_named(wanted: Collection[Hook | str] | None) -> frozenset[Hook]:
    """The hooks of these names; None means all.

    Raises:
        ArgumentError: for another name.
    """
    if isinstance(wanted, str):
        raise ArgumentError(f"hooks must be a collection of hooks, got the str {wanted!r}")
    try:
        return frozenset(Hook(hook) for hook in (Hook if wanted is None else wanted))
    except ValueError as error:
        known = ", ".join(hook.value for hook in Hook)
        raise ArgumentError(f"{error}; the hooks are {known}") from error


class Observer:
    """Committed events in order, through a buffer of its own; iterate with `for` or `async for`.

    Yields `Event`s, and a `Gap` in the place of events that were lost. It never slows the run:
    when its buffer is full the oldest events make room. Whoever iterates takes what is buffered
    in one go, so that up to two buffers are held. The iteration ends with the run, after what is
    buffered. Dropping or closing it detaches it.

    Args:
        lag: instead of losing events, let the run wait while so many (or `buffer_bytes`) have
            not been read. Who gives it must read on, or close it.
        rules: it gets what all of them let pass.

    Attributes:
        every: of the step events it takes only every n-th of its hook.
        closed: it takes no more events.
        lost: how many events its buffer had no room for.
        last: `seq` of the newest event that it was offered; -1 before the first.
    """

    def __init__(
        self,
        hooks: Collection[Hook | str] | None = None,
        every: int = 1,
        *,
        run_id: str | None = None,
        buffer: int = RING_EVENTS,
        buffer_bytes: int = RING_BYTES,
        lag: int | None = None,
        rules: tuple[Rule, ...] = (),
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ArgumentError(f"every must be an int of at least 1, got {every!r}")
        self.run_id = run_id
        self._hooks, self.rules = hooks_named(hooks), rules
        self.every = every
        self._window = Window(buffer if lag is None else lag, buffer_bytes)
        self._waits = lag is not None
        self._taken: deque[Event] = deque()  # out of the window, and older than any gap
        self._gaps: dict[str, Gap] = {}
        self.closed = False
        self.lost, self.last = 0, -1
        self._wake: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)

    @property
    def ready(self) -> bool:
        """Whether `next` gives an item without waiting."""
        return bool(self._taken or self._window.entries)

    def wants(self, hook: Hook, ordinal: int, step: int = 0, epoch: int = 0) -> bool:
        """Whether it takes the `ordinal`-th event of `hook`; `every` thins out step hooks only."""
        if hook not in self._hooks or not passes(self.rules, hook, step, epoch):
            return False
        return self.every == 1 or ordinal % self.every == 0 or not hook.is_step

    def offer(self, entry: Committed) -> None:
        """A wanted event was committed; called by the log, from any thread.

        With a bounded lag it waits for room. After an interrupt of that wait it waits no more, and
        what it has no room for is a gap.
        """
        with self._lock:
            try:
                while self._waits and not self._room.wait_for(
                    lambda: self.closed or self._window.fits(entry), INTERRUPT_POLL
                ):
                    pass
            except BaseException:
                self._waits = False
                raise
            finally:
                if not self.closed:
                    self._push(entry)
                wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def miss(self, run_id: str, first: int, last: int, reason: str = "retention") -> None:
        """Events from before it attached are no longer there."""
        with self._lock:
            self._lose(run_id, first, last, reason)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def admits(self, entry: Committed | None, seconds: float) -> bool:
        """Whether it has room for `entry`, or for None has taken out everything, by then."""
        with self._lock:
            return self._room.wait_for(
                lambda: (
                    self.closed
                    or not self._window.entries
                    or (entry is not None and self._window.fits(entry))
                ),
                seconds,
            )

    def close(self) -> None:
        """Take no more events; what is buffered can still be read."""
        with self._lock:
            self.closed = True
            self._room.notify_all()
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _push(self, entry: Committed) -> None:
        self.last = entry.event.seq
        for lost in self._window.push(entry):
            self.lost += 1
            self._lose(lost.event.run_id, lost.event.seq, lost.event.seq, "slow")

    def _lose(self, run_id: str, first: int, last: int, reason: str) -> None:
        before = self._gaps.get(run_id)
        if before is not None:
            first, reason = before.first, before.reason
        self._gaps[run_id] = Gap(run_id=run_id, first=first, last=last, reason=reason)

    def _take(self, wake: Callable[[], object] | None) -> Event | Gap | None:
        """The next item; None when there is none yet (`wake` is called once there may be)."""
        if self._taken:
            return self._taken.popleft()
        with self._lock:
            if self._gaps:
                return self._gaps.pop(next(iter(self._gaps)))
            if self._waits and self._window.entries:
                event = self._window.pop().event
                self._room.notify_all()
                return event
            if self._window.entries:
                self._taken.extend(entry.event for entry in self._window.clear())
                self._room.notify_all()
                return self._taken.popleft()
            if self.closed:
                raise StopIteration
            self._wake = wake
            return None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event | Gap:
        if self._taken:
            return self._taken.popleft()
        if self._window.entries or self.closed:
            item = self._take(None)
            if item is not None:
                return item
        if _in_event_loop():
            raise ArgumentError(
                "`for` would block this event loop; use `async for` over an observer"
            )
        arrived = threading.Event()
        while (item := self._take(arrived.set)) is None:
            arrived.wait()
            arrived.clear()
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Gap:
        await checkpoint()
        while True:
            arrived = anyio.Event()
            try:
                item = self._take(partial(self._ring, current_token(), arrived))
            except StopIteration:
                raise StopAsyncIteration from None
            if item is not None:
                return item
            await arrived.wait()

    def _ring(self, token: EventLoopToken, arrived: anyio.Event) -> None:
        """Set `arrived` in its own loop without waiting for that loop."""
        if not soon(token, arrived.set):  # its observer has ended with it
            self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def soon(token: EventLoopToken, function: Callable[[], object]) -> bool:
    """Let an event loop call `function`, without waiting for it; False where the loop has ended."""
    loop: Any = token.native_token
    call = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    try:
        call(function)
    except RuntimeError:
        return False
    return True


def _in_event_loop() -> bool:
    try:
        current_token()
    except NoEventLoopError:
        return False
    return True
