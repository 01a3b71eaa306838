"""A callback of the list that observes: called in a thread of its own, after each commit (C8)."""

import inspect
import logging
import threading
import time
from collections.abc import Callable

from railbus.bus.log import EventLog
from railbus.bus.observer import Observer
from railbus.bus.tap import Tap
from railbus.bus.window import RING_EVENTS
from railbus.schemas.errors import ArgumentError, told
from railbus.schemas.events import Event, Gap
from railbus.schemas.hooks import Hook, Mode

from .callback import Callback, overrides
from .checks import count, seconds
from .context import ObserverContext
from .participant import Tally, role_of
from .views import Views

logger = logging.getLogger(__name__)

GRACE = 1.0  # seconds for the hook at work to return, once its thread was told to end


class Watcher:
    """Runs one observer of the list.

    Args:
        name: unique within the run.
        replays: the run is a recorded one and waits for it, whatever its `lag`; its networks are
            not there.

    Attributes:
        callback: the observer.
        error: what it failed with, if its policy is `raise`.
        failure: what the run has failed with, for `on_exception`.
        revoked: it is still stuck in a hook.

    Raises:
        ArgumentError, ArgumentTypeError: the callback has what only a participant can have, or a
            wrong `lag`, `drain_seconds` or `needs`.
    """

    least_lag = 1

    def __init__(
        self,
        name: str,
        callback: Callback,
        stop_requested: Callable[[Mode], bool],
        replays: bool = False,
    ) -> None:
        self.role = role_of(name, callback)
        self.tally = Tally()
        self.error: BaseException | None = None
        self.failure: BaseException | None = None
        self.revoked = False
        _check(name, callback, self.role.hooks, self.least_lag)
        waits = callback.lag is not None
        every = callback.needs.get("train_network")
        self.views = Views(every, self.role, waits) if every and not replays else None
        self._drain = seconds(f"{name}.drain_seconds", callback.drain_seconds)
        self.callback = callback
        self._context = ObserverContext(stop_requested, name)
        self._lag = callback.lag or (RING_EVENTS if replays else None)
        self._observer: Observer | Tap = self._listener()
        self._thread = threading.Thread(target=self._serve, name=f"railbus {name}", daemon=True)
        self._lock = threading.Lock()
        self._over = False
        self._next = 0
        self._until = 0.0

    def _listener(self) -> Observer | Tap:
        """What it gets the log's entries through."""
        return Observer(self.role.hooks, lag=self._lag, rules=self.role.rules)

    def start(self, log: EventLog, request_stop: Callable[[str, str], None]) -> None:
        """Follow the run from its first event."""
        self._request_stop = request_stop
        self._observer.run_id = log.run_id
        log.attach(self._observer, None)
        self._thread.start()

    def close(self) -> None:
        """The run has ended: no event follows."""
        self._until = time.monotonic() + self._drain
        self._observer.close()

    def finish(self) -> None:
        """Wait until everything is delivered, for `drain_seconds` after `close` at most."""
        if self._thread.ident is None:
            return
        try:
            self._thread.join(max(self._until - time.monotonic(), 0.0))
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let the thread end; it has time for the hook that it is in, but not for ever."""
        self._end()
        self._thread.join(GRACE)
        self.revoked = self._thread.is_alive()
        if self.revoked:
            logger.error("%s is stuck in a hook and keeps its thread", self.role.name)

    def _end(self) -> None:
        """Let the thread end, and say what it has not delivered."""
        with self._lock:
            self._over, first = True, self._next
        if self.views is not None:
            self.views.close()
        name, last = self.role.name, self._observer.last
        if self._observer.lost and not overrides(self.callback, "on_gap"):
            logger.warning("%s was too slow for %d events", name, self._observer.lost)
        if first <= last and not self.tally.errors:
            logger.warning(
                "%s did not get events #%d to #%d: they were not delivered within %g s of the "
                "run's end (drain_seconds)",
                name,
                first,
                last,
                self._drain,
            )

    def _serve(self) -> None:
        assert isinstance(self._observer, Observer)
        for item in self._observer:
            with self._lock:
                if self._over:
                    return
                self._next = 1 + (item.last if isinstance(item, Gap) else item.seq)
            try:
                self._hand(item)
            except BaseException as error:
                self._fail("on_gap" if isinstance(item, Gap) else item, error)
                return

    def _hand(self, item: Event | Gap) -> None:
        if isinstance(item, Gap):
            self.callback.on_gap(item)
            return
        network = None if self.views is None else self.views.take(item)
        self._context._show(item, network)
        method = getattr(self.callback, item.hook.value)
        since = time.perf_counter()
        try:
            if item.hook is Hook.EXCEPTION:
                method(self._context, self.failure)
            else:
                method(self._context)
        finally:
            self.tally.events += 1
            self.tally.seconds += time.perf_counter() - since
            self._context._close()

    def _fail(self, where: object, error: BaseException) -> None:
        """It gets nothing further; its policy acts."""
        name, policy = self.role.name, self.role.on_error
        self.tally.errors += 1
        if policy == "raise":
            self.error = error
        if policy != "detach":  # before a run that waits for it is let go
            self._request_stop(name, f"{name} failed: {told(error)}")
        self._observer.close()
        if self.views is not None:
            self.views.close()
        logger.error("%s raised in %s, on_error=%r", name, where, policy, exc_info=error)


def _check(name: str, callback: Callback, hooks: frozenset[Hook], least: int) -> None:
    if callback.lag is not None:
        count(f"{name}.lag", callback.lag, least)
    if callback.deadline is not None:
        raise ArgumentError(
            f"{name} observes and has a deadline, which only participants have; lag = None never "
            f"makes the run wait"
        )
    if set(callback.needs) - {"train_network"}:
        raise ArgumentError(
            f"{name} observes and can need 'train_network' only, got {sorted(callback.needs)}"
        )
    for hook in hooks:
        names = (hook.value, hook.alias or hook.value)
        if any(inspect.iscoroutinefunction(getattr(callback, one)) for one in names):
            raise ArgumentError(
                f"{name}.{hook.value} is async, but an observer has a thread of its own; make it a "
                f"plain def"
            )
