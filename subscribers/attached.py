"""`run_callback`: a callback of this process in a run of another one (C1-C8)."""

from typing import Protocol

from anyio import to_thread

from railbus.bus.client import Attachment, attach

from .callback import Callback, callback_list, hooks_of
from .guest import Guest
from .host import ObserverHost
from .roster import replacement


def run_callback(
    url: str,
    callback: Callback,
    *,
    token: str,
    slot: str | None = None,
    run: str | None = None,
    every: int = 1,
    retry_seconds: float = 60.0,
) -> None:
    """Run `callback` here for a run that a service shows, until that run ends.

    With `slot` it is the participant for which the run's list has a `Remote(slot)`: as in process,
    it may stop the run, assign in `cb_params` and look at `train_network.params`, which then comes
    over the wire. Without, it is an observer: it sees committed events from the next one on, and is
    not told whether a stop was asked. It is entered first, and exited at the end. A connection that
    breaks is made anew; an event that was handled is not handled again. What a hook raises leaves
    this function, after the run was told: with `on_error = "stop"` the run is asked to stop,
    otherwise `on_lost` of the `Remote` decides.

    From here `train_network` cannot be assigned and `save_checkpoint` not called, and state is not
    kept in checkpoints. The deadline is that of the `Remote`.

    Args:
        url: where the service is, as for `attach`.
        token: needs the scope `control` where there is a slot, `observe` anyway.
        run: None is the run that began last.
        every: of an observer, of the step events only every n-th of its hook.
        retry_seconds: how long to try to come back; with a slot, to come the first time, too.

    Raises:
        RemoteError: the service refuses, stays away, or the run goes on without the participant.
        ArgumentError, CallbackTypeError: an url or a callback that is none.
        BaseException: what a hook, `__enter__` or `__exit__` has raised.
    """
    _visit(url, callback, token, slot, run, every, retry_seconds).serve()


async def arun_callback(
    url: str,
    callback: Callback,
    *,
    token: str,
    slot: str | None = None,
    run: str | None = None,
    every: int = 1,
    retry_seconds: float = 60.0,
) -> None:
    """`run_callback` for an event loop: it runs in a thread; arguments and errors are the same.

    Cancelled, it leaves; the callback is exited when the hook at work has returned.
    """
    visit = _visit(url, callback, token, slot, run, every, retry_seconds)
    try:
        await to_thread.run_sync(visit.serve, abandon_on_cancel=True)
    finally:
        visit.close()


class _Visit(Protocol):
    def serve(self) -> None: ...

    def close(self) -> None: ...


class _Watching:
    """Runs a callback with the events of an attachment."""

    def __init__(self, callback: Callback, events: Attachment) -> None:
        self._callback, self._events = callback, events
        self.close = events.close

    def serve(self) -> None:
        with self._events as events, self._callback as entered:
            host = ObserverHost(replacement(self._callback, entered))
            for item in events:
                host.handle(item)


def _visit(
    url: str,
    callback: Callback,
    token: str,
    slot: str | None,
    run: str | None,
    every: int,
    retry_seconds: float,
) -> _Visit:
    callback_list(callback)
    if slot is not None:
        return Guest(url, callback, token, slot, run, retry_seconds)
    hooks = hooks_of(callback)
    events = attach(
        url, token=token, run=run, hooks=hooks, every=every, retry_seconds=retry_seconds
    )
    return _Watching(callback, events)
