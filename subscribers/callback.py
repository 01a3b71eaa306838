"""`Callback`: what users subclass."""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from railbus.bus.sequencer import Policy
from railbus.schemas.errors import ArgumentError, ArgumentTypeError, CallbackTypeError
from railbus.schemas.events import Gap
from railbus.schemas.hooks import LEGACY, Hook

from .checks import count
from .context import RunContext


class Callback:
    """A member of a run's list: override the hooks you need, each a `def` or an `async def`.

    It is a participant, which the run waits for, or an observer (`observes = True`). An observer's
    hooks, all plain `def`, are called after each event's commit, in order, in a thread of its own;
    `run_context.original_args()` is then the event's snapshot, read-only, and a stop cannot be
    asked. After the run's last event it gets what is still to be delivered.

    Plain hooks run one after another in the thread that trains (in one beside it, if a callback of
    the list has a deadline), async ones on the run's event loop; return values are ignored. A hook
    that is not overridden is not delivered and costs nothing; another method whose name begins with
    `on_` is refused when a run begins. The older names `begin, epoch_begin, step_begin, step_end,
    epoch_end, end` serve training and evaluation alike; `train` and `eval` call them, `fit` refuses
    them, as in MindSpore.

    A callback is entered once per run before its first event and exited after the last one.
    `__enter__` may return another callback that takes its place.

    Attributes:
        on_error: what an exception in a hook, or a missed deadline, does: `"raise"` ends the run
            with it, `"stop"` asks the run to stop, `"detach"` goes on without this callback. None
            is `"raise"` for a participant and `"detach"` for an observer. An observer's error is
            logged, and it gets no further event; with `"raise"` the run is asked to stop, and
            raises the error when it has ended, after its terminal event.
        needs: how often, in steps of training, it looks at `train_network` or `optimizer`, for
            example `{"train_network": 100}`. A block then ends there, so that the state is at
            hand; at any other step it is computed anew, which costs up to a block's time. An
            observer sees the handle in `on_train_begin` and in `on_train_step_end` of these steps
            only, elsewhere a reference.
        deadline: seconds a hook may take before the run goes on without it; None waits (C7). Not
            for observers.
        observes: it is an observer; it cannot slow the run (C8).
        lag: of an observer, how many committed events may wait for it before the run does. None
            never makes the run wait: an observer that is too slow loses events, which `on_gap`
            tells it, and it sees the network of the last two steps that it `needs` only. With a
            number, one that is stuck holds the run, as a participant would.
        signal_handlers: functions of a signal's number, by that, which are set while the run is on if
            it is in the main thread; the first signal puts back those that were there before.
        drain_seconds: how long the run's end waits for an observer to handle what it has not yet.
    """

    on_error: Policy | None = None
    deadline: float | None = None
    observes: bool = False
    lag: int | None = None
    signal_handlers: Mapping[int, Callable[[int], object]] = MappingProxyType({})
    drain_seconds: float = 30.0
    needs: Mapping[str, int] = MappingProxyType({})

    def __enter__(self) -> "Callback":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return None

    def on_train_begin(self, run_context: RunContext) -> Any:
        """Once, before the first epoch."""
        return self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> Any:
        """Before each epoch of training."""
        return self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> Any:
        """Before each step; `cur_step_num` is already this step's."""
        return self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> Any:
        """After each step; `net_outputs` is this step's."""
        return self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> Any:
        """After each epoch and its validation; `metrics` and `eval_results` are those just made."""
        return self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> Any:
        """Once, at the end of a run that did not fail."""
        return self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> Any:
        """Before each evaluation."""
        return self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> Any:
        """Before the one epoch of an evaluation."""
        return self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> Any:
        """Before each batch of an evaluation."""
        return self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> Any:
        """After each batch of an evaluation; `net_outputs` is `(loss, outputs, labels)`."""
        return self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> Any:
        """After the last batch of an evaluation, before its metrics are computed."""
        return self.epoch_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> Any:
        """After each evaluation; `metrics` are there."""
        return self.end(run_context)

    def on_exception(self, run_context: RunContext, error: BaseException) -> Any:
        """Once, when the run has failed with `error`, in place of `on_train_end`."""

    def on_gap(self, gap: Gap) -> Any:
        """An observer was too slow for events; without this method the run's end warns of them."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: numbers, text, bytes, lists, dicts, arrays of numbers, None."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave; after `on_train_begin` of a resumed run, and inside of
        an epoch after `on_train_epoch_begin`.
        """

    def resume_points(self, latest: bool) -> Sequence[Path]:
        """Checkpoints from which an interrupted run may go on; asked before a run begins.

        Args:
            latest: the user said `resume="latest"`; otherwise nothing was said.

        Returns:
            In any order; the run goes on from the one that has come furthest and can be read.
        """
        return ()

    def begin(self, run_context: RunContext) -> Any:
        """MindSpore's older name of `on_train_begin` and `on_eval_begin`."""

    def epoch_begin(self, run_context: RunContext) -> Any:
        """MindSpore's older name of `on_train_epoch_begin` and `on_eval_epoch_begin`."""

    def step_begin(self, run_context: RunContext) -> Any:
        """MindSpore's older name of `on_train_step_begin` and `on_eval_step_begin`."""

    def step_end(self, run_context: RunContext) -> Any:
        """MindSpore's older name of `on_train_step_end` and `on_eval_step_end`."""

    def epoch_end(self, run_context: RunContext) -> Any:
        """MindSpore's older name of `on_train_epoch_end` and `on_eval_epoch_end`."""

    def end(self, run_context: RunContext) -> Any:
        """MindSpore's older name of `on_train_end` and `on_eval_end`."""


def callback_list(callbacks: Any) -> list[Callback]:
    """`callbacks` as given to a trainer (None, one, a list or a tuple of them) as a list.

    Raises:
        CallbackTypeError: naming the first element that is not a `Callback`.
        ArgumentError: naming a method `on_...` that is no hook, or takes other arguments.
    """
    if callbacks is None:
        return []
    given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    for place, one in enumerate(given):
        if not isinstance(one, Callback):
            what = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
            fix = "; make an instance of it" if isinstance(one, type) else ""
            raise CallbackTypeError(f"callbacks[{place}] must be a Callback, got {what}{fix}")
        refuse_misspelled(one)
    return given


def refuse_misspelled(callback: Callback) -> None:
    """Methods that would never be called, or not with what a hook is called with."""
    hooks = [hook.value for hook in Hook]
    kind = type(callback).__name__
    for name in dir(callback):
        if difflib.get_close_matches(name, ["on_error"], cutoff=0.85) and name != "on_error":
            raise ArgumentError(f"{kind}.{name} has no meaning; did you mean on_error?")
        method = getattr(type(callback), name, None) if name.startswith("on_") else None
        if not callable(method):
            continue
        if name not in vars(Callback):
            raise ArgumentError(
                f"{kind}.{name} is no hook and would never be called{_meant(name, hooks)}; the hooks "
                f"are {', '.join(hooks)}, begin the names of other methods with something else"
            )
        given = (None,) * (2 if name == Hook.EXCEPTION.value else 1)
        try:
            inspect.signature(getattr(callback, name)).bind(*given)
        except TypeError as error:
            takes = "(self, run_context, error)" if len(given) > 1 else "(self, run_context)"
            raise ArgumentError(f"{kind}.{name} must take {takes}: {error}") from error


def _meant(name: str, hooks: Sequence[str]) -> str:
    """The hook of that name in Keras, Lightning or Transformers, or the one spelled most alike."""
    words = re.sub("batch", "step", re.sub("validation|val|test", "eval", name))
    words = words.replace("_start", "_begin")
    if words not in hooks:
        words = words.replace("on_", "on_train_", 1)
    near = [words] if words in hooks else difflib.get_close_matches(name, hooks, n=1, cutoff=0.75)
    return f" (did you mean {near[0]}?)" if near else ""


def needs_of(callbacks: Sequence[Callback]) -> tuple[int, ...]:
    """The step counts at whose multiples some callback needs the state.

    Raises:
        ArgumentError, ArgumentTypeError: a `needs` that is no dict of `train_network` or
            `optimizer` to a number of steps.
    """
    found = set()
    for one in callbacks:
        name = f"{type(one).__name__}.needs"
        if not isinstance(one.needs, Mapping):
            raise ArgumentTypeError(f"{name} must be a dict, got {one.needs!r}")
        for thing, steps in one.needs.items():
            if thing not in ("train_network", "optimizer"):
                raise ArgumentError(
                    f"{name} takes 'train_network' and 'optimizer', got {thing!r}; everything else "
                    f"is in cb_params at every step"
                )
            found.add(count(f"{name}[{thing!r}]", steps, 1))
    return tuple(sorted(found))


def refuse_overwriting(callbacks: Sequence[Callback]) -> None:
    """With `exact=False` a state is overwritten before an observer can look at it.

    Raises:
        ArgumentError: naming an observer that needs the state.
    """
    for one in callbacks:
        if one.observes and one.needs:
            raise ArgumentError(
                f"{type(one).__name__} observes and needs the network, which RunAhead(exact=False) "
                f"overwrites; use exact=True"
            )


def hooks_of(callback: Callback) -> frozenset[Hook]:
    """The hooks that `callback` overrides, under their present or their older name."""
    return frozenset(
        hook
        for hook in Hook
        if overrides(callback, hook.value)
        or (hook.alias is not None and overrides(callback, hook.alias))
    )


def refuse_legacy(callbacks: Sequence[Callback]) -> None:
    """`fit` calls both kinds of hooks, so a name that serves both would be called twice.

    Raises:
        ArgumentError: naming the callback and its older hook names.
    """
    for one in callbacks:
        old = [name for name in LEGACY if overrides(one, name)]
        if old:
            new = [hook.value for hook in Hook if hook.alias in old]
            raise ArgumentError(
                f"{type(one).__name__} overrides {', '.join(old)}, which fit would call in "
                f"training and in validation; rename to the ones meant: {', '.join(new)}"
            )


def overrides(callback: Callback, name: str) -> bool:
    """Whether `callback` has a method `name` of its own."""
    method = getattr(callback, name)
    return getattr(method, "__func__", method) is not getattr(Callback, name)
