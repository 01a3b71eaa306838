"""`LearningRateMonitor`: keeps the learning rate and what else the optimizer injects."""

from collections.abc import Mapping
from typing import Any, Literal

from railbus.schemas.errors import ArgumentError
from railbus.schemas.params import INJECT

from .callback import Callback
from .checks import count, flag
from .context import RunContext
from .printing import say
from .readings import plain, short


class LearningRateMonitor(Callback):
    """Keeps the optimizer's injected hyperparameters over the steps or the epochs of a run.

    At `on_train_step_end`, or at `on_train_epoch_end` for `every="epoch"`: the values as
    `cb_params` has them then. Of a schedule these are what the step has used; of a value that
    callbacks assign likewise, unless one listed before has already set the next one, or
    `RunAhead(exact=False)` lets it wait for the steps that are on the device. Each run
    starts anew, a resumed one goes on. With `verbose` it prints `epoch: 1 step: 3, learning_rate: 0.01, momentum: 0.9`
    (step within the epoch). A participant. `LearningRateMonitor` in Lightning; MindSpore and Keras
    have none.

    Args:
        every: steps from one value to the next, counted over all epochs, or `"epoch"`.
        verbose: print what is kept.

    Attributes:
        history: lists of values by name, all as long as `steps` and `epochs`.
        steps: the steps that the values belong to, counted over all epochs.
        epochs: the epochs of those steps.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work; and at the run's begin
            where the optimizer injects nothing.
    """

    def __init__(self, every: int | Literal["epoch"] = 1, verbose: bool = False) -> None:
        if isinstance(every, str) and every != "epoch":
            raise ArgumentError(f"every must be a number of steps or 'epoch', got {every!r}")
        self._every = 0 if every == "epoch" else count("every", every, 1)
        self._verbose = flag("verbose", verbose)
        self.history: dict[str, list[Any]] = {}
        self.steps: list[int] = []
        self.epochs: list[int] = []

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew; there must be something to keep."""
        if not run_context.hyperparams():
            raise ArgumentError(f"LearningRateMonitor finds no injected hyperparameter; {INJECT}")
        self.history, self.steps, self.epochs = {}, [], []

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Keep the step's, if it is due."""
        if self._every and run_context.original_args().cur_step_num % self._every == 0:
            self._keep(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Keep the epoch's, where that was asked for."""
        if not self._every:
            self._keep(run_context)

    def state_dict(self) -> dict[str, Any]:
        """What was kept."""
        history = {name: list(values) for name, values in self.history.items()}
        return {"history": history, "steps": list(self.steps), "epochs": list(self.epochs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, in lists of its own."""
        self.history = {name: list(values) for name, values in state["history"].items()}
        self.steps, self.epochs = list(state["steps"]), list(state["epochs"])

    def _keep(self, run_context: RunContext) -> None:
        cb_params, values = run_context.original_args(), plain(run_context.hyperparams())
        self.steps.append(cb_params.cur_step_num)
        self.epochs.append(cb_params.cur_epoch_num)
        for name, value in values.items():
            self.history.setdefault(name, []).append(value)
        if self._verbose:
            shown = ", ".join(f"{name}: {short(value)}" for name, value in values.items())
            where = f"epoch: {cb_params.cur_epoch_num} step: {cb_params.cur_batch_num}"
            say(f"{where}, {shown}")
