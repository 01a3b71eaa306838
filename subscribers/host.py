"""A callback that runs here for a run elsewhere: what its hooks are called with, and its ack."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from railbus.bus.rule import passes
from railbus.schemas.codec import Reference, pack
from railbus.schemas.errors import FrameError, RecordedFailure, RemoteFailure, told
from railbus.schemas.events import Event, Gap, StopRequest
from railbus.schemas.frames import Answer, Asked, pack as pack_frame, unpack_from_client
from railbus.schemas.hooks import Hook, Mode
from railbus.schemas.hyperparams import like
from railbus.schemas.params import Ledger, Live, Patch
from railbus.schemas.pieces import unpack_arrays

from .callback import Callback
from .context import ObserverContext, RunContext
from .filters import Filter

TEXT = 1000  # characters of a reason or an error that travel


class RemoteNetwork:
    """The network of a run elsewhere as it is at one event; fetched when somebody asks.

    What was fetched stays readable; it can be fetched while its hook runs.
    """

    __slots__ = ("_data", "_fetch")

    def __init__(self, fetch: Callable[[], bytes]) -> None:
        self._fetch, self._data = fetch, b""

    @property
    def params(self) -> dict[str, Any]:
        """Nested dict of numpy arrays, a new one each time; names and places are str.

        Raises:
            StateGone: the event is over, or the run has no such state.
            RemoteError: the service stays away.
        """
        self._data = self._data or self._fetch()
        return unpack_arrays(self._data)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"of a run elsewhere cb_params.train_network has params, no {name!r}")


class Host:
    """Calls one callback at its turns, as the run's own process would.

    Args:
        fetch: gives the network's parameters at an event, packed.

    Attributes:
        error: what its hook has raised, or what it asked for and cannot travel.
    """

    def __init__(self, callback: Callback, slot: str, fetch: Callable[[Event], bytes]) -> None:
        self.callback, self._slot, self._fetch = callback, slot, fetch
        self.error: BaseException | None = None
        self._ledger = Ledger()
        self._stopping: tuple[Mode, ...] = ()
        self._context = RunContext(self._ledger, lambda mode: mode in self._stopping, slot)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def handle(self, asked: Asked) -> bytes:
        """The ack to `asked`, packed; the hook is called."""
        self._show(asked)
        patch: Patch | None = None
        stop: StopRequest | None = None
        if _passes(self.callback, asked.event.hook, self._ledger.params):
            self._ledger.open()
            self._context._event = asked.event
            try:
                self._call(asked)
                patch = self._ledger.close()
            except Exception as error:
                self.error = error
            finally:
                self._ledger.revert()
                stop = self._context._close()
        return self._packed(asked.event, stop, patch)

    def _show(self, asked: Asked) -> None:
        """`cb_params` as they are at the event."""
        ledger, event = self._ledger, asked.event
        snapshot: dict[str, Any] = dict(event.cb_params)
        network = snapshot.get("train_network")
        if isinstance(network, Reference):
            handle = RemoteNetwork(lambda: self._fetch(event))
            snapshot["train_network"] = Live(handle, pack(network))
        ledger.traced = {name: like(name, snapshot[name]) for name in asked.traced}
        ledger.publish(snapshot, ledger.params.keys() - snapshot.keys())
        ledger.commit()
        self._stopping = asked.stopping

    def _call(self, asked: Asked) -> None:
        method = getattr(self.callback, asked.event.hook.value)
        given: tuple[Any, ...] = (self._context,)
        if asked.error is not None:
            given += (RemoteFailure(asked.error),)
        called = method(*given)
        if inspect.isawaitable(called):
            if self._portal is None:
                self._portal = self._stack.enter_context(start_blocking_portal())
            self._portal.call(_awaited, called)

    def _packed(self, event: Event, stop: StopRequest | None, patch: Patch | None) -> bytes:
        packed = pack_frame(self._answer(event, stop, patch))
        try:
            unpack_from_client(packed)
        except FrameError as error:
            self.error = error
            packed = pack_frame(self._answer(event, None, None))
        return packed

    def _answer(self, event: Event, stop: StopRequest | None, patch: Patch | None) -> Answer:
        error = None if self.error is None else told(self.error)[:TEXT]
        reason = None if stop is None else stop.reason[:TEXT]
        interrupts = stop is not None and stop.interrupts
        if error is not None and reason is None and self.callback.on_error == "stop":
            reason, interrupts = f"{self._slot} failed: {error}"[:TEXT], True
        return Answer(
            run_id=event.run_id,
            incarnation=event.incarnation,
            seq=event.seq,
            hook=event.hook.value,
            stop=reason,
            scope="train" if stop is None else stop.scope,
            interrupts=interrupts,
            patch=patch,
            error=error,
        )


class ObserverHost:
    """Calls one callback with the committed events of a run elsewhere."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._context = ObserverContext(lambda mode: False, type(callback).__name__)

    def handle(self, item: Event | Gap) -> None:
        """Call its hook, or `on_gap`."""
        if isinstance(item, Gap):
            self._callback.on_gap(item)
            return
        self._context._show(item, None)
        cb_params = self._context.original_args()
        if not _passes(self._callback, item.hook, cb_params):
            return
        method = getattr(self._callback, item.hook.value)
        if item.hook is Hook.EXCEPTION:
            method(self._context, RecordedFailure(str(cb_params.get("stop_reason"))))
        else:
            method(self._context)


def _passes(callback: Callback, hook: Hook, cb_params: dict[str, Any]) -> bool:
    """Whether the filters around `callback` that look at numbers let the event pass."""
    rules = callback.rules if isinstance(callback, Filter) else ()
    return passes(rules, hook, cb_params.get("cur_step_num", 0), cb_params.get("cur_epoch_num", 0))


async def _awaited(called: Any) -> None:
    await called
