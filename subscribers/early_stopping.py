"""`EarlyStopping`: stops a run that does not get better any more."""

from collections.abc import Mapping
from typing import Any, Literal

from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checks import count, flag, number
from .context import RunContext
from .monitor import Better, Monitor
from .printing import say
from .weights import copied, pack_weights, shapes_of, unpack_weights


class EarlyStopping(Callback):
    """Asks the run to stop when a value has not improved for a while; a participant.

    At `on_train_epoch_end`, of epochs that have the value: after a validation, or each for `"loss"`.
    NaN is no improvement, 0 is a value like any other. The best weights come back whichever way the
    run ended, in `on_train_epoch_end` when it stops here, else in `on_train_end`. Called the same
    in MindSpore (whose patience 0 stops after one epoch, whose `baseline` is not used, which skips
    a value of 0 and guesses the direction of unknown names), Keras and Lightning.

    Args:
        monitor: a result of the validation, or `"loss"`, the training loss of the epoch's last step.
        min_delta: how much is an improvement; its sign does not count.
        patience: epochs with the value, one after another, without improvement until it stops; 0
            and 1 both stop at the first.
        verbose: print what it does.
        mode: `"min"`, `"max"`, or `"auto"`, which takes it from the usual names.
        baseline: only values better than it, by `min_delta`, end the waiting.
        restore_best_weights: keep a copy of the best weights on the device and give them back.

    Attributes:
        best: the best value so far, None before the first.
        best_epoch: its epoch, 0 before the first.
        stopped_epoch: where it asked to stop, 0 if it did not.

    Prints with `verbose`: `Restoring model weights from the end of the best epoch.`, and at
    `on_train_end` `Epoch 00004: early stopping`.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work; in a run that has no
            validation, or none with that result.
    """

    def __init__(
        self,
        monitor: str = "eval_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
    ) -> None:
        self._monitor = Monitor(monitor)
        self._better = Better(monitor, mode, min_delta)
        self._patience = count("patience", patience, 0)
        self._verbose = flag("verbose", verbose)
        self._baseline = None if baseline is None else number("baseline", baseline)
        self._restores = flag("restore_best_weights", restore_best_weights)
        self.best: float | None = None
        self._weights: Any = None
        self._network: Any = None  # that of the run's begin, for `load_state_dict`
        self._clear()

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        cb_params = run_context.original_args()
        self._monitor.begin(cb_params)
        self._clear()
        if self._restores:
            self._network = cb_params.train_network

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Compare; stop when the patience is at its end."""
        self._network = None
        cb_params = run_context.original_args()
        value = self._monitor.value(cb_params)
        if value is None:
            return
        self._wait += 1
        if self._better(value, self.best):
            self._keep(value, cb_params)
        if self._wait and self._wait >= self._patience:
            self.stopped_epoch = cb_params.cur_epoch_num
            run_context.request_stop(self._reason())
            self._give_back(cb_params)

    def on_train_end(self, run_context: RunContext) -> None:
        """Give the best weights back if that has not happened."""
        self._give_back(run_context.original_args())
        if self._verbose and self.stopped_epoch:
            say(f"Epoch {self.stopped_epoch:05d}: early stopping")

    def state_dict(self) -> dict[str, Any]:
        """How long it has waited, where it stopped, the best value, its epoch and kept weights."""
        weights = None if self._weights is None else pack_weights(self._weights)
        best = {"best": self.best, "best_epoch": self.best_epoch, "weights": weights}
        return {"wait": self._wait, "stopped_epoch": self.stopped_epoch, **best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Wait on from there."""
        self._wait, self.stopped_epoch = state["wait"], state["stopped_epoch"]
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        if self._restores and state["weights"] is not None:
            shapes = shapes_of(self._network.params)
            self._weights = unpack_weights(state["weights"], shapes)

    def _clear(self) -> None:
        self._wait = self.best_epoch = self.stopped_epoch = 0
        self.best = self._weights = None

    def _keep(self, value: float, cb_params: CallbackParams) -> None:
        self.best, self.best_epoch = value, cb_params.cur_epoch_num
        if self._restores:
            self._weights = copied(cb_params.train_network.params)
        if self._baseline is None or self._better(value, self._baseline):
            self._wait = 0

    def _give_back(self, cb_params: CallbackParams) -> None:
        if self._weights is None or self.best_epoch == cb_params.get("cur_epoch_num"):
            return
        cb_params.train_network, self._weights = self._weights, None
        if self._verbose:
            say("Restoring model weights from the end of the best epoch.")

    def _reason(self) -> str:
        base = "" if self._baseline is None else f" beyond the baseline {self._baseline:g}"
        best = "none" if self.best is None else f"{self.best:g} at epoch {self.best_epoch}"
        name, epoch, wait = self._monitor.name, self.stopped_epoch, self._wait
        return f"epoch {epoch}: {name} has not improved{base} in {wait} checks, best is {best}"
