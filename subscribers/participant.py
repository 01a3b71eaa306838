"""A callback of this process as a participant: it is called, and what it did becomes an ack."""

import inspect
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from railbus.bus.publisher import Answer, Turn, Worker
from railbus.bus.sequencer import POLICIES, Role
from railbus.schemas.errors import ArgumentError, told
from railbus.schemas.events import Ack
from railbus.schemas.hooks import Hook
from railbus.schemas.params import Ledger

from .callback import Callback, hooks_of, overrides
from .checks import seconds
from .context import RunContext
from .filters import Filter

logger = logging.getLogger(__name__)


class Tally(msgspec.Struct, kw_only=True):
    """What one participant has cost so far; `seconds` is time spent in its hooks."""

    events: int = 0
    seconds: float = 0.0
    errors: int = 0
    stops: int = 0


class CallbackParticipant:
    """Runs one `Callback` in its place of the list.

    Args:
        name: unique within the run.
        context: what its hooks are called with.
        lane: runs its `def` hooks.
        loop: runs its `async def` hooks.

    Raises:
        ArgumentError, ArgumentTypeError: for a wrong `on_error` or `deadline` of the callback.
    """

    def __init__(
        self,
        name: str,
        callback: Callback,
        context: RunContext,
        ledger: Ledger,
        lane: Worker,
        loop: Worker,
    ) -> None:
        self.callback = callback
        self.role = role_of(name, callback)
        self.tally = Tally()
        self.error: BaseException | None = None
        self.revoked = False
        self._ledger = ledger
        self._context = context
        self._methods = {hook: getattr(callback, hook.value) for hook in self.role.hooks}
        self._workers = _workers(callback, self.role.hooks, lane, loop)
        self._since = 0.0

    def worker(self, hook: Hook) -> Worker:
        """Who runs it at `hook`."""
        return self._workers[hook]

    def call(self, turn: Turn) -> BaseException | None:
        """Run the hook that `turn` asks for; returns the exception it raised.

        What is no `Exception` (an interrupt, an exit) is nobody's policy and passes through.
        """
        if self.revoked:
            return None
        try:
            self._begin(turn)
        except Exception as error:
            return error
        except BaseException:
            self._withdraw()
            raise
        return None

    async def acall(self, turn: Turn) -> BaseException | None:
        """The same for an `async def` hook; a cancellation passes through too."""
        try:
            await self._begin(turn)
        except Exception as error:
            return error
        except BaseException:
            self._withdraw()
            raise
        return None

    def ack(self, turn: Turn, error: BaseException | None) -> Ack | Answer:
        """The answer, once the hook has returned or raised `error`."""
        tally, event = self.tally, turn.event
        tally.seconds += time.perf_counter() - self._since
        tally.events += 1
        stop = self._context._close()
        self.error = error
        if error is None:
            patch = self._ledger.close()
            if patch is None and stop is None:
                return Answer.OK
            text = None
        else:
            self._ledger.revert()
            patch = None
            text = told(error)
            tally.errors += 1
            self._say(turn, error)
        if stop is not None:
            tally.stops += 1
        return Ack(
            run_id=event.run_id,
            seq=event.seq,
            hook=event.hook,
            by=self.role.name,
            stop=stop,
            patch=patch,
            error=text,
        )

    def revoke(self) -> None:
        """It missed its deadline: whatever it still does has no effect on the run."""
        self.revoked = True
        self._context._revoke()

    def leave(self) -> None:
        """The run is over."""
        self._context._leave()

    def _withdraw(self) -> None:
        self._ledger.revert()
        self._context._close()

    def _begin(self, turn: Turn) -> Any:
        context, event = self._context, turn.event
        self._ledger.open()
        context._event = event
        method = self._methods[event.hook]
        self._since = time.perf_counter()
        if turn.error is not None:
            return method(context, turn.error)
        return method(context)

    def _say(self, turn: Turn, error: BaseException) -> None:
        if self.role.on_error == "raise" and turn.event.hook is not Hook.EXCEPTION:
            return
        logger.error(
            "%s raised in %s, on_error=%r",
            self.role.name,
            turn.event,
            self.role.on_error,
            exc_info=error,
        )


def role_of(name: str, callback: Callback) -> Role:
    """What the bus needs to know of `callback`.

    Raises:
        ArgumentError, ArgumentTypeError: for a wrong `on_error` or `deadline`.
    """
    policy, deadline = callback.on_error, callback.deadline
    if policy is None:
        policy = "detach" if callback.observes else "raise"
    if policy not in POLICIES:
        raise ArgumentError(f"{name}.on_error must be one of {POLICIES}, got {policy!r}")
    if deadline is not None:
        deadline = seconds(f"{name}.deadline", deadline)
    return Role(
        name=name,
        hooks=hooks_of(callback),
        on_error=policy,
        deadline=deadline,
        rules=callback.rules if isinstance(callback, Filter) else (),
    )


def _workers(
    callback: Callback, hooks: frozenset[Hook], lane: Worker, loop: Worker
) -> Mapping[Hook, Worker]:
    def is_async(hook: Hook) -> bool:
        name = hook.value if overrides(callback, hook.value) else hook.alias
        return inspect.iscoroutinefunction(getattr(callback, name or hook.value))

    return {hook: loop if is_async(hook) else lane for hook in hooks}
