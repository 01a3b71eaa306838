"""One run from entering its callbacks to its result, and the handle of a run under way."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from types import MappingProxyType
from typing import Any

import anyio
from anyio import CancelScope, CapacityLimiter, create_task_group, to_thread
from anyio.from_thread import start_blocking_portal

from railbus.bus.about import About
from railbus.bus.bus import EventBus, ungrouped
from railbus.bus.log import EventLog
from railbus.bus.observer import Observer
from railbus.bus.publisher import Drafts, Publisher, last_words
from railbus.schemas.errors import BusClosed
from railbus.schemas.hooks import Hook, Mode
from railbus.subscribers.callback import Callback, needs_of, overrides
from railbus.subscribers.roster import Roster

from .configuration import device
from .loop import RunLoop
from .program import TrainState
from .result import RunResult, RunStats, Status
from .resume import Cut, pack
from .saver import Saver

logger = logging.getLogger(__name__)


class Execution:
    """A run that is prepared and checked, and carried out once.

    Args:
        facts: what `cb_params` holds from the first event on.
        begin: called with the loop before anything is entered; may refuse by raising.
        finish: called with the loop and its last state when the callbacks have been exited.
        cut: what an interrupted run left behind, if this one goes on with it.
        config: the run's arguments, as JSON values.
        incarnation: counts the processes that carried the run on.
    """

    def __init__(
        self,
        run_id: str,
        loop: RunLoop,
        callbacks: Sequence[Callback],
        facts: Mapping[str, Any],
        begin: Callable[[RunLoop], None],
        finish: Callable[[RunLoop, TrainState | None], None],
        stats: RunStats,
        cut: Cut | None = None,
        config: Mapping[str, Any] = MappingProxyType({}),
        incarnation: int = 0,
    ) -> None:
        self.run_id, self.loop, self.stats = run_id, loop, stats
        self._config, self._incarnation = config, incarnation
        self.roster = Roster(callbacks)
        self._facts, self._begin, self._finish = facts, begin, finish
        self._resumed = cut
        self._saver = loop.saver = Saver(lambda: loop.here.state, self._cut, self._saves)
        loop.resume_with(self._resume)
        self._publisher: Publisher | None = None
        self._asked: list[tuple[str, str]] = []
        self._asking = Lock()
        self._error: BaseException | None = None
        self._swallowed = False
        self._began: float | None = None

    def count(self) -> RunStats:
        """What it has done and cost so far."""
        if self._began is not None:
            self.stats.seconds = time.perf_counter() - self._began
        if self._publisher is not None:
            self.stats.events = self._publisher.sequencer.seq
        self.stats.callbacks = dict(self.roster.tallies)
        self.stats.steps_again = self.loop.steps_again
        return self.stats

    def conduct(self, log: EventLog) -> None:
        """Enter the callbacks, drive the loop, exit them; an error is kept for `result`."""
        self._began = time.perf_counter()
        try:
            self._begin(self.loop)
            self.roster.enter(self.loop.ledger, self._stop_requested, self._saver.ask)
            self.loop.need(needs_of(self.roster.seated))
        except BaseException as error:
            self._error = error
            state = self.loop.end()
        else:
            self._drive(log)
            state = self._end()
            self._exit()
        self._saver.close()
        log.close()
        try:
            self.loop.close()
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._finish(self.loop, state)
            self.count()
            self._began = None
            self.roster.leave()

    def request_stop(self, by: str, reason: str) -> None:
        """Someone outside the callback list asks to stop, from any thread, at any time."""
        self._asked.append((by, reason))
        self._pass_on()

    def patch(self, name: str, value: float, by: str) -> None:
        """Someone outside sets a traced value, from any thread; part of the next commit.

        Raises:
            NotTraced, ReadOnlyParam: `name` is none that the compiled step reads.
            ArgumentError: `value` does not fit.
        """
        assert self._publisher is not None
        packed = self.loop.ledger.check(name, value)
        self._publisher.sequencer.request_patch(by, {name: packed})

    def result(self) -> RunResult:
        """How it ended.

        Raises:
            BaseException: what it failed with, unless an `__exit__` swallowed that.
        """
        if self._error is not None and not self._swallowed:
            raise self._error
        ended = self.loop.ledger.params
        failed = Status.FAILED
        return RunResult(
            run_id=self.run_id,
            status=failed if self._error is not None else Status(ended.get("status", failed)),
            reason=ended.get("stop_reason"),
            by=ended.get("stop_by"),
            at=ended.get("stop_at"),
            step=self.loop.step,
            epoch=self.loop.epoch,
            metrics=self.loop.metrics,
            history=tuple(self.loop.history),
            stats=self.stats,
            error=self._error,
        )

    def _stop_requested(self, mode: Mode) -> bool:
        return self._publisher is not None and self._publisher.sequencer.stop_requested(mode)

    def _pass_on(self) -> None:
        with self._asking:
            while self._publisher is not None and self._asked:
                self._publisher.sequencer.request_stop(*self._asked.pop(0))

    def _drive(self, log: EventLog) -> None:
        cut = self._resumed
        number, before = self._incarnation, 0.0 if cut is None else cut.seconds
        publisher = Publisher(log, self.roster.participants, self.loop.ledger, number, before)
        self._publisher = publisher
        log.about = About(
            run_id=self.run_id,
            incarnation=number,
            plan=self.loop.plan,
            roles=tuple(one.role for one in self.roster.participants),
            observers=tuple(one.role.name for one in self.roster.watchers),
            device=device(),
            config=self._config,
        )
        log.control = self
        self._pass_on()
        try:
            self.roster.watch(log, self.request_stop)
            self.loop.ledger.publish(self._facts)
            self._facts = {}  # it held the first state
            self.loop.drive(publisher)
        except BaseException as error:
            self._error = error
            self._saver.drop()
            self.roster.fail(error)
            self._publish_exception(publisher, error)

    def _end(self) -> TrainState | None:
        """The state where the run has ended; after a failure it is what checkpoints get."""
        cut: bytes | None = None
        if self._saver.due and not self.loop.resuming:
            try:
                cut = self._cut(failed=True)
            except Exception as error:
                self._saver.refuse(error)
        state = self.loop.end()
        self._saver.failed(state, cut)
        return state

    def _cut(self, failed: bool = False) -> bytes:
        """The run, packed, at the event that was just committed, or where it has failed."""
        loop, publisher = self.loop, self._publisher
        assert publisher is not None
        cut = Cut(
            run_id=self.run_id,
            incarnation=self._incarnation,
            seconds=publisher.now,
            stop=loop.stop,
            **loop.committed(),
            callbacks=None if failed else self.roster.state_dicts(),
        )
        return pack(cut)

    def _saves(self) -> bool:
        """Whether a callback of the list saves what it could go on from."""
        return any(overrides(one, "resume_points") for one in self.roster.seated)

    def _resume(self) -> Mapping[str, bytes]:
        """The callbacks have set themselves up: they go on where they were."""
        cut, loop = self._resumed, self.loop
        assert cut is not None
        loop.losses, loop.history, loop.metrics = cut.losses, cut.history, cut.metrics
        if cut.stop is not None and self._publisher is not None:
            self._publisher.sequencer.hear(cut.stop)
        if cut.callbacks is None:
            logger.warning("run %s had failed; its callbacks begin anew", cut.run_id)
        else:
            self.roster.load_state_dicts(cut.callbacks)
        return cut.params

    def _publish_exception(self, publisher: Publisher, error: BaseException) -> None:
        """The terminal event of a run that failed; a second error must not hide the first."""
        try:
            publisher.publish(_last_words(error, publisher.failed_by, self.loop))
        except BaseException as another:
            logger.error("on_exception of run %s failed", self.run_id, exc_info=another)

    def _exit(self) -> None:
        try:
            error = self.roster.dismiss()
            self._error = error if self._error is None else self._error
        except BaseException as interrupt:
            self._error = interrupt
        try:
            self._swallowed = self.roster.exit(self._error)
        except BaseException as error:
            self._error = error


def _last_words(error: BaseException, by: str | None, loop: RunLoop) -> Drafts:
    counters = loop.counters if loop.trains and loop.epoch else {}
    loop.failed((yield from last_words(error, by, counters)))


def carry_out(bus: EventBus, execution: Execution, address: str | None = None) -> RunResult:
    """Train in the calling thread; an event loop for the bus runs beside it until the run ends.

    The bus is served at `address` as long.
    """
    with _announced(bus, address), start_blocking_portal() as portal:
        opening = bus.open(execution.run_id, execution.roster.workers)
        with portal.wrap_async_context_manager(opening) as log:
            execution.conduct(log)
    return execution.result()


@contextmanager
def _announced(bus: EventBus, address: str | None) -> Iterator[None]:
    """Serve `bus` and say how to watch it."""
    if address is None:
        yield
        return
    from railbus.bus.serving import serving  # a web server, which few runs need

    with serving(bus, address) as served:
        print(f"watch this run: {served.hint}", flush=True)
        yield


@asynccontextmanager
async def _announced_beside(bus: EventBus, address: str | None) -> AsyncIterator[None]:
    """The same on an event loop, which does not wait."""
    if address is None:
        yield
        return
    from railbus.bus.serving import serve

    async with serve(bus, address) as served:
        print(f"watch this run: {served.hint}", flush=True)
        yield


class Run:
    """A run under way: `async with trainer.start_fit(...) as run`.

    Leaving the block waits for the run to end and raises what it failed with. Cancelling the
    block, or leaving it with an exception, asks the run to stop and waits.
    """

    def __init__(self, bus: EventBus, execution: Execution) -> None:
        self.run_id = execution.run_id
        self._bus, self._execution = bus, execution
        self._ended = anyio.Event()

    @property
    def stats(self) -> RunStats:
        """What it has done and cost so far."""
        return self._execution.count()

    def events(
        self, hooks: Collection[Hook | str] | None = None, every: int = 1, since: int | None = 0
    ) -> Observer:
        """Its committed events, from the first one by default (see `EventBus.observe`)."""
        return self._bus.observe(hooks, every, since, run_id=self.run_id)

    def request_stop(self, reason: str = "asked from outside", by: str = "operator") -> None:
        """Ask it to stop; from any thread. It takes effect with the next event (C3).

        Raises:
            BusClosed: it has ended.
        """
        if self._ended.is_set():
            raise BusClosed("this run has ended", run_id=self.run_id)
        self._execution.request_stop(by, reason)

    async def wait(self) -> RunResult:
        """How it ended.

        Raises:
            BaseException: what it failed with.
        """
        await self._ended.wait()
        return self._execution.result()

    async def host(self, log: EventLog) -> None:
        """Train in a thread of its own; a cancellation waits for the graceful stop."""
        with CancelScope(shield=True):
            await to_thread.run_sync(self._execution.conduct, log, limiter=CapacityLimiter(1))
            self._ended.set()


@asynccontextmanager
async def start(
    bus: EventBus, execution: Execution, address: str | None = None
) -> AsyncIterator[Run]:
    """Carry `execution` out beside the caller, on the caller's event loop; see `carry_out`."""
    run = Run(bus, execution)
    with ungrouped():
        async with (
            _announced_beside(bus, address),
            bus.open(run.run_id, execution.roster.workers) as log,
            create_task_group() as group,
        ):
            group.start_soon(run.host, log)
            try:
                yield run
                await run.wait()
            except BaseException as error:
                cancelled = isinstance(error, anyio.get_cancelled_exc_class())
                reason = "cancelled" if cancelled else f"the block around the run raised {error!r}"
                execution.request_stop("host", reason)
                raise
