"""`ReduceLROnPlateau`: lowers the learning rate when a value does not get better any more."""

from collections.abc import Mapping
from typing import Any, Literal

from railbus.schemas.errors import ArgumentError
from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checks import count, flag, number
from .context import RunContext
from .learning_rate import require_rate
from .monitor import Better, Monitor
from .printing import say


class ReduceLROnPlateau(Callback):
    """Multiplies the learning rate by `factor` when a value has not improved; a participant.

    At `on_train_epoch_end`, of epochs that have the value: after a validation, or each for `"loss"`.
    The next step uses the new rate. The optimizer must be built with `optax.inject_hyperparams` and
    a number as learning rate, which is checked before the first step. Called the same in MindSpore
    (which skips a value of 0 and guesses the direction of unknown names) and Keras; Lightning has
    none, its schedulers are the optimizer's.

    Args:
        monitor: a result of the validation, or `"loss"`, the training loss of the epoch's last step.
        factor: what the rate is multiplied by, above 0 and below 1.
        patience: epochs with the value, one after another, without improvement until it lowers the
            rate; 0 and 1 both do at the first.
        verbose: print each change.
        mode: `"min"`, `"max"`, or `"auto"`, which takes it from the usual names.
        min_delta: how much is an improvement; its sign does not count.
        cooldown: epochs with the value after a change in which none counts as without improvement;
            the last of them does again (as in MindSpore and Keras).
        min_lr: the rate never goes below it.

    Attributes:
        best: the best value so far, None before the first.

    Prints with `verbose`: `Epoch 00003: ReduceLROnPlateau reducing learning rate to 0.1.`

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work; in a run that has no
            validation, or none with that result.
        ParamError: in a run whose learning rate is not injected, or follows a schedule.
    """

    def __init__(
        self,
        monitor: str = "eval_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0,
    ) -> None:
        self._monitor = Monitor(monitor)
        self._better = Better(monitor, mode, min_delta)
        self._factor = number("factor", factor)
        if not 0 < self._factor < 1:
            raise ArgumentError(f"factor must be above 0 and below 1, got {factor}")
        self._patience = count("patience", patience, 0)
        self._verbose = flag("verbose", verbose)
        self._cooldown = count("cooldown", cooldown, 0)
        self._min_lr = number("min_lr", min_lr)
        if self._min_lr < 0:
            raise ArgumentError(f"min_lr must be at least 0, got {min_lr}")
        self.best: float | None = None
        self._wait = self._cooling = 0

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        cb_params = run_context.original_args()
        self._monitor.begin(cb_params)
        require_rate(cb_params)
        self.best = None
        self._wait = self._cooling = 0

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Compare; lower the rate when the patience is at its end."""
        cb_params = run_context.original_args()
        value = self._monitor.value(cb_params)
        if value is None:
            return
        if self._cooling:
            self._cooling -= 1
            self._wait = 0
        if self._better(value, self.best):
            self.best, self._wait = value, 0
        elif not self._cooling:
            self._wait += 1
            if self._wait >= self._patience:
                self._reduce(cb_params)

    def state_dict(self) -> dict[str, Any]:
        """How long it has waited, how long it still cools down, and the best value."""
        return {"wait": self._wait, "cooling": self._cooling, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Wait on from there."""
        self._wait, self._cooling, self.best = state["wait"], state["cooling"], state["best"]

    def _reduce(self, cb_params: CallbackParams) -> None:
        rate = cb_params.learning_rate
        lower = max(float(rate) * self._factor, self._min_lr)
        if rate.dtype.type(lower) >= rate:
            return
        cb_params.learning_rate = lower
        self._cooling, self._wait = self._cooldown, 0
        if self._verbose:
            say(
                f"Epoch {cb_params.cur_epoch_num:05d}: ReduceLROnPlateau reducing learning rate to "
                f"{cb_params.learning_rate!s}."
            )
