"""The event bus of a process: the runs that are on it, and who watches them (C8, C12)."""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from weakref import ref

from anyio import create_task_group

from railbus.schemas.errors import ArgumentError, BusClosed
from railbus.schemas.hooks import Hook

from .log import EventLog
from .observer import Observer
from .publisher import Worker
from .window import RING_BYTES, RING_EVENTS

ENDED_RUNS = 16  # logs of ended runs that stay readable


@contextmanager
def ungrouped() -> Iterator[None]:
    """Let a task group's only error out by itself, with its cause."""
    try:
        yield
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__


@asynccontextmanager
async def serving(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """The workers serve in a task group until the block is left."""
    with ungrouped():
        async with create_task_group() as group:
            for worker in workers:
                await group.start(worker.run)
            try:
                yield
            finally:
                for worker in workers:
                    worker.close()


class EventBus:
    """Committed events of the runs in this process, for whoever wants to watch.

    Args:
        ring: how many of a run's newest committed events stay readable for late observers.
        ring_bytes: the same in bytes of snapshots.
    """

    def __init__(self, ring: int = RING_EVENTS, ring_bytes: int = RING_BYTES) -> None:
        self._ring, self._ring_bytes = ring, ring_bytes
        self._logs: dict[str, EventLog] = {}
        self._observers: tuple[ref[Observer], ...] = ()
        self._lock = Lock()
        self._closed = False

    @property
    def runs(self) -> dict[str, EventLog]:
        """Logs of the runs on this bus, the last 16 that ended included, oldest first."""
        with self._lock:
            return dict(self._logs)

    def observe(
        self,
        hooks: Collection[Hook | str] | None = None,
        every: int = 1,
        since: int | None = None,
        *,
        run_id: str | None = None,
        buffer: int = RING_EVENTS,
        buffer_bytes: int = RING_BYTES,
    ) -> Observer:
        """Committed events as an iterator, `for` or `async for`, from any thread or event loop.

        Args:
            hooks: which ones, by `Hook` or by name; None means all.
            every: of the step events only every n-th of its hook.
            since: begin with this `seq`, out of the ring; None begins with the next event.
            run_id: only this run, which may still have to begin; the iteration ends with it. None
                means every run, those that begin later too, until the observer is closed.
            buffer: how many events wait for a slow reader before a gap opens.
            buffer_bytes: the same in bytes of snapshots.

        Raises:
            ArgumentError: for an unknown hook, or a number below 1.
            BusClosed: after `close`.
        """
        observer = Observer(hooks, every, run_id=run_id, buffer=buffer, buffer_bytes=buffer_bytes)
        with self._lock:
            if self._closed:
                raise BusClosed("observe() on a closed bus")
            logs = [log for log in self._logs.values() if run_id in (None, log.run_id)]
            self._observers = (*filter(_attached, self._observers), ref(observer))
        for log in logs:
            log.attach(observer, since)
        return observer

    @asynccontextmanager
    async def open(self, run_id: str, workers: Sequence[Worker] = ()) -> AsyncIterator[EventLog]:
        """A run begins; its workers serve in a task group until the block is left.

        Raises:
            ArgumentError: a run of that name is on the bus already.
        """
        log = self._begin(run_id)
        try:
            async with serving(workers):
                yield log
        finally:
            log.close()

    def close(self) -> None:
        """End every observation; runs under way go on unobserved."""
        with self._lock:
            self._closed = True
            observers, self._observers = self._observers, ()
        for reference in observers:
            if (observer := reference()) is not None:
                observer.close()

    def _begin(self, run_id: str) -> EventLog:
        log = EventLog(run_id, self._ring, self._ring_bytes)
        with self._lock:
            if run_id in self._logs:
                raise ArgumentError(f"a run named {run_id!r} is on this bus already")
            ended = [name for name, old in self._logs.items() if old.ended]
            for name in ended[:-ENDED_RUNS]:
                del self._logs[name]
            self._logs[run_id] = log
            observers = [reference() for reference in self._observers]
        for observer in observers:
            if observer is not None and observer.run_id in (None, run_id):
                log.attach(observer, None)
        return log


def _attached(reference: ref[Observer]) -> bool:
    observer = reference()
    return observer is not None and not observer.closed
