"""`LearningRateScheduler`: the learning rate as a function of the step or the epoch."""

import inspect
import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checks import function
from .context import RunContext
from .learning_rate import require_rate


class LearningRateScheduler(Callback):
    """Sets the learning rate to what a function makes of it; a participant.

    At `on_train_step_end`, `learning_rate_function(lr, cur_step_num)`, used from the next step on;
    with `by="epoch"` at `on_train_epoch_end`, `learning_rate_function(lr, cur_epoch_num)`, used from
    the next epoch on. What the function gives is set where it differs, in the rate's own precision;
    each change costs what the device has computed ahead, so `optax` schedules, which are part of
    the compiled step, are faster where a formula of the step will do. The optimizer must be built
    with `optax.inject_hyperparams` and a number as learning rate. With `RunAhead(exact=False)` a
    change by step waits for the steps that are on the device. Called the same in MindSpore (which
    knows only steps and fails in `eval`) and in Keras (which calls `schedule(epoch, lr)`, the other
    way round, before each epoch); Lightning has none.

    Args:
        learning_rate_function: takes the present rate as a float and a number counted from 1 over
            the run; gives the new rate.
        by: `"step"` or `"epoch"`.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work, and in a run where the
            function gives no finite number of at least 0. A function whose parameters are named
            in Keras' order is refused.
        ParamError: in a run whose learning rate is not injected, or follows a schedule.
    """

    def __init__(
        self,
        learning_rate_function: Callable[[float, int], float],
        *,
        by: Literal["step", "epoch"] = "step",
    ) -> None:
        self._function = function("learning_rate_function", learning_rate_function)
        _check_order(learning_rate_function)
        if by not in ("step", "epoch"):
            raise ArgumentError(f"by must be 'step' or 'epoch', got {by!r}")
        self._by = by

    def on_train_begin(self, run_context: RunContext) -> None:
        """Look whether the rate can be set."""
        require_rate(run_context.original_args())

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Set the rate of the next step."""
        if self._by == "step":
            cb_params = run_context.original_args()
            self._set(cb_params, cb_params.cur_step_num)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Set the rate of the next epoch."""
        if self._by == "epoch":
            cb_params = run_context.original_args()
            self._set(cb_params, cb_params.cur_epoch_num)

    def _set(self, cb_params: CallbackParams, place: int) -> None:
        rate = cb_params.learning_rate
        given = self._function(float(rate), place)
        wanted = np.asarray(given)
        what = f"learning_rate_function at {self._by} {place} must give"
        if wanted.ndim or wanted.dtype.kind not in "iuf":
            raise ArgumentTypeError(f"{what} a number, got {type(given).__name__} {given!r}")
        if not (math.isfinite(wanted) and wanted >= 0):
            raise ArgumentError(f"{what} a finite rate of at least 0, got {given!r}")
        if wanted.astype(rate.dtype) != rate:
            cb_params.learning_rate = given


def _check_order(schedule: Callable[..., float]) -> None:
    """Keras' functions take the epoch first: one that would be given the rate for it is refused."""
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # some built-in functions tell none
        return
    try:
        signature.bind(0.1, 1)
    except TypeError as error:
        raise ArgumentTypeError(
            f"learning_rate_function must take (lr, number): {error}"
        ) from error
    names = list(signature.parameters)[:2]
    if len(names) == 2 and names[1] in ("lr", "learning_rate"):
        raise ArgumentError(
            f"learning_rate_function takes (lr, number), MindSpore's order, got {tuple(names)}, Keras'"
        )
