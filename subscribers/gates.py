"""What a filter asks in the lane, where an event's number alone does not tell."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from railbus.schemas.hooks import Hook

from .callback import Callback, hooks_of, overrides
from .context import RunContext


class Gate(Protocol):
    """Lets events at `hooks` pass or not; asked where the callback runs."""

    hooks: frozenset[Hook]

    def begin(self) -> None:
        """A run begins."""

    def lets(self, hook: Hook, run_context: RunContext) -> bool:
        """Whether the present event, at `hook`, passes."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class Interval:
    """Lets a step (or an epoch) pass `seconds` after the last that did; None: only the first ever.

    The first event of a step decides for the whole of it, so that a step that is begun is ended.
    The first interval begins with the run.
    """

    def __init__(self, hooks: frozenset[Hook], seconds: float | None, whole: str = "steps") -> None:
        self.hooks = hooks
        self._seconds, self._epochs = seconds, whole == "epochs"
        self.begin()

    def begin(self) -> None:
        """A run begins."""
        self._last: float | None = None
        self._place: list[Any] = []
        self._open = False

    def lets(self, hook: Hook, run_context: RunContext) -> bool:
        """Whether the present event belongs to a step that passes."""
        shown = run_context.original_args()
        place: list[Any] = [shown.get("cur_epoch_num", 0)]
        if not self._epochs:
            place += [hook.mode, shown.get("cur_step_num", 0)]
        if place != self._place:
            self._place, self._open = place, self._due(run_context.now())
            if self._open:
                self._last = run_context.now()
        return self._open

    def state_dict(self) -> dict[str, Any]:
        """When it passed last, and what was decided for the present step."""
        return {"last": self._last, "place": self._place, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._last, self._open = state["last"], state["open"]
        self._place = list(state["place"])

    def _due(self, now: float) -> bool:
        if self._seconds is None:
            return self._last is None
        return now - (self._last or 0.0) >= self._seconds


class Condition:
    """Lets an event pass if `predicate(run_context)` is true."""

    def __init__(self, hooks: frozenset[Hook], predicate: Callable[[RunContext], Any]) -> None:
        self.hooks = hooks
        self._predicate = predicate

    def begin(self) -> None:
        """It remembers nothing."""

    def lets(self, hook: Hook, run_context: RunContext) -> bool:
        """What the predicate says of the present event."""
        return bool(self._predicate(run_context))

    def state_dict(self) -> dict[str, Any]:
        """It remembers nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """It remembers nothing."""


def gated(inner: Callback, gates: tuple[Gate, ...]) -> dict[str, Callable[..., Any]]:
    """The hooks of `inner` that some gate stands before, by name."""
    return {
        hook.value: _behind([gate for gate in gates if hook in gate.hooks], hook, inner)
        for hook in hooks_of(inner)
        if any(hook in gate.hooks for gate in gates)
    }


def _behind(gates: list[Gate], hook: Hook, inner: Callback) -> Callable[..., Any]:
    name = hook.value if overrides(inner, hook.value) else hook.alias or hook.value
    method = getattr(inner, name)

    def call(run_context: RunContext) -> Any:
        return method(run_context) if all(one.lets(hook, run_context) for one in gates) else None

    async def acall(run_context: RunContext) -> None:
        if all(one.lets(hook, run_context) for one in gates):
            await method(run_context)

    return acall if inspect.iscoroutinefunction(method) else call
