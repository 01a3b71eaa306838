"""Filters around a callback: `every`, `once`, `between`, `when`.

What they filter is the same for all, by `unit`:

- `"steps"` (and `"seconds"`): the step hooks, of training and of evaluations;
- `"epochs"`: the epoch hooks and the step hooks, those of the epoch's validation included. A lone
  `eval` belongs to no epoch of training, and nothing of it is left out.

The hooks `on_train_begin`, `on_train_end`, `on_eval_begin`, `on_eval_end` and `on_exception` always
arrive: a callback needs them to set itself up and to close.

A filtered callback stands in the list as itself: under its own name, with its `on_error`,
`deadline`, `needs`, `observes`, `lag`, `drain_seconds` and state, and it may be a participant or an
observer. Filters nest. Those that look at numbers (`every` n steps or epochs, `between`) are
judged by the bus, without calling anybody, and come first wherever they stand; the others are asked
where the callback runs, the inner one first, and see only what those before them let pass.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from railbus.bus.rule import Rule
from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.hooks import STEPS, Hook

from .callback import Callback, hooks_of, refuse_misspelled
from .checks import count, function, seconds
from .context import RunContext
from .gates import Condition, Gate, Interval, gated

EPOCHS = STEPS | {hook for hook in Hook if "_epoch_" in hook}
OWN = frozenset({"rules", "gates", "state_dict", "load_state_dict", "__enter__", "__exit__"})


class Filter(Callback):
    """A callback that gets fewer events; everything else is that of the callback inside.

    Attributes:
        rules: judged by the bus, before it is called.
        gates: asked where it runs, in this order.

    Raises:
        ArgumentTypeError: `callback` is none.
        ArgumentError: it has a method `on_...` that is no hook, or none that this filters.
    """

    rules: tuple[Rule, ...]
    gates: tuple[Gate, ...]

    def __init__(self, callback: Callback, *more: Rule | Gate) -> None:
        rules, gates = (
            (callback.rules, callback.gates) if isinstance(callback, Filter) else ((), ())
        )
        inner = (
            object.__getattribute__(callback, "_inner")
            if isinstance(callback, Filter)
            else callback
        )
        if not isinstance(inner, Callback):
            raise ArgumentTypeError(f"callback must be a Callback, got {type(inner).__name__}")
        refuse_misspelled(inner)
        for one in more:
            replaced = type(inner).__enter__ is not Callback.__enter__  # by whom is not known yet
            if not (replaced or hooks_of(inner) & one.hooks):
                fits = "" if one.hooks >= EPOCHS else "; unit='epochs' filters the epoch hooks, too"
                raise ArgumentError(f"{type(inner).__name__} has no hook that this filters{fits}")
        own = object.__getattribute__(self, "__dict__")
        own["_inner"] = inner
        own["rules"] = (*rules, *(one for one in more if isinstance(one, Rule)))
        own["gates"] = (*gates, *(one for one in more if not isinstance(one, Rule)))
        own["_gated"] = gated(inner, own["gates"])

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in own["_gated"]:
            return own["_gated"][name]
        return object.__getattribute__(self, name) if name in OWN else getattr(own["_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_inner"), name, value)

    def __enter__(self) -> Callback:
        inner = object.__getattribute__(self, "_inner")
        for gate in self.gates:
            gate.begin()
        entered: Any = inner.__enter__()
        if entered is None or entered is inner:
            return self
        return (
            Filter(entered, *self.rules, *self.gates) if isinstance(entered, Callback) else entered
        )

    def __exit__(self, *error: Any) -> bool | None:
        inner: Callback = object.__getattribute__(self, "_inner")
        return inner.__exit__(*error)

    def state_dict(self) -> dict[str, Any]:
        """That of the callback inside, and what the gates remember."""
        inner: Callback = object.__getattribute__(self, "_inner")
        gates = [gate.state_dict() for gate in self.gates]
        return (
            {"callback": inner.state_dict(), "gates": gates} if any(gates) else inner.state_dict()
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        inner: Callback = object.__getattribute__(self, "_inner")
        if not any(gate.state_dict() for gate in self.gates):
            inner.load_state_dict(state)
            return
        inner.load_state_dict(state["callback"])
        for gate, remembered in zip(self.gates, state["gates"], strict=True):
            gate.load_state_dict(remembered)


def every(n: float, callback: Callback, unit: str = "steps") -> Callback:
    """`callback` at every n-th step, every n-th epoch, or every n seconds.

    Args:
        n: of `"steps"` those whose `cur_step_num` is a multiple (evaluations count their own), of
            `"epochs"` those whose `cur_epoch_num` is; of `"seconds"` the first step that is n
            seconds or more (`run_context.now()`) after the last that was taken, or after the begin.
        unit: `"steps"`, `"epochs"` or `"seconds"`.

    Raises:
        ArgumentError, ArgumentTypeError: for another unit, an n below 1 or no number, no callback.
    """
    if unit == "seconds":
        return Filter(callback, Interval(STEPS, seconds("n", n)))
    hooks, times = _hooks(unit, "seconds"), count("n", n, 1)
    return Filter(callback, Rule(hooks=hooks, unit=_numbers(unit), every=times))


def between(a: int, b: int, callback: Callback, unit: str = "steps") -> Callback:
    """`callback` at the training steps (or epochs) a <= number < b.

    With `"steps"` the steps of evaluations are not filtered.

    Raises:
        ArgumentError, ArgumentTypeError: for another unit, an empty range, no callback.
    """
    hooks = _hooks(unit)
    if unit == "steps":
        hooks = frozenset(hook for hook in hooks if hook.mode == "train")
    first, before = count("a", a, 0), count("b", b, 1)
    if before <= first:
        raise ArgumentError(f"b must be above a, got a={a} and b={b}")
    return Filter(callback, Rule(hooks=hooks, unit=_numbers(unit), first=first, before=before))


def once(callback: Callback, unit: str = "steps") -> Callback:
    """`callback` at one step (or epoch) of a run: the first that other filters let pass.

    A run that is resumed after it does not do it again, but for the `on_train_epoch_begin` with which
    callbacks set themselves up where it goes on inside of an epoch.

    Raises:
        ArgumentError, ArgumentTypeError: for another unit, no callback.
    """
    return Filter(callback, Interval(_hooks(unit), None, unit))


def when(
    predicate: Callable[[RunContext], Any], callback: Callback, unit: str = "steps"
) -> Callback:
    """`callback` where `predicate(run_context)` is true, asked at each event that is filtered.

    It is asked where the callback runs, as part of its hook: it costs a call per event, and what it
    raises is the callback's error.

    Raises:
        ArgumentError, ArgumentTypeError: for another unit, a predicate that is async or cannot be
            called, no callback.
    """
    if inspect.iscoroutinefunction(function("predicate", predicate)):
        raise ArgumentTypeError("predicate must be a plain def, got an async def")
    return Filter(callback, Condition(_hooks(unit), predicate))


def kind_of(callback: Callback) -> str:
    """The name of its kind, whatever filters are around it."""
    return type(inner_of(callback)).__name__


def inner_of(callback: Callback) -> Callback:
    """The callback inside of all filters."""
    if not isinstance(callback, Filter):
        return callback
    inner: Callback = object.__getattribute__(callback, "_inner")
    return inner


def _hooks(unit: str, *others: str) -> frozenset[Hook]:
    if unit not in ("steps", "epochs"):
        known = ", ".join(map(repr, ("steps", "epochs", *others)))
        raise ArgumentError(f"unit must be one of {known}, got {unit!r}")
    return STEPS if unit == "steps" else EPOCHS


def _numbers(unit: str) -> Literal["steps", "epochs"]:
    return "steps" if unit == "steps" else "epochs"
