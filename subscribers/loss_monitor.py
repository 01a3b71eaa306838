"""`LossMonitor`: prints the loss, and stops a run whose loss is no number any more."""

from collections.abc import Mapping
from typing import Any

from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checks import count
from .context import RunContext
from .outputs import all_finite, loss_of
from .printing import say


class LossMonitor(Callback):
    """Prints the loss of training steps and of a lone `eval`'s steps, and validation results.

    At `on_train_step_end` and, outside of `fit`, `on_eval_step_end`, every `per_print_times` steps
    counted over all epochs: `epoch: 1 step: 3, loss is 0.25` (step within the epoch). At
    `on_train_epoch_end` after a validation: `Eval result: epoch 2, metrics: {'accuracy': 0.5}`. A NaN
    or Inf in any float output asks the run to stop, whether it prints or not. A participant.
    MindSpore's `LossMonitor`, which raises there instead, and looks at no tuple; Keras and
    Lightning have none.

    Args:
        per_print_times: steps from one line to the next; 0 prints none of them.

    Raises:
        ArgumentTypeError, ArgumentError: `per_print_times` is no int of at least 0.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        self._every = count("per_print_times", per_print_times, 0)
        self._last = 0

    def on_train_begin(self, run_context: RunContext) -> None:
        """Count from the run's first step."""
        self._last = 0

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Check the outputs; print when it is time."""
        self._step(run_context, run_context.original_args())

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print what the epoch's validation found."""
        cb_params = run_context.original_args()
        if "metrics" in cb_params:
            results = {name: _plain(value) for name, value in cb_params.metrics.items()}
            say(f"Eval result: epoch {cb_params.cur_epoch_num}, metrics: {results}")

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Count a lone evaluation's steps."""
        if "epoch_num" not in run_context.original_args():
            self._last = 0

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """The same for a lone evaluation; silent in `fit`'s validation."""
        cb_params = run_context.original_args()
        if "epoch_num" not in cb_params:
            self._step(run_context, cb_params)

    def state_dict(self) -> dict[str, Any]:
        """The step that was printed last."""
        return {"last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        self._last = state["last"]

    def _step(self, run_context: RunContext, cb_params: CallbackParams) -> None:
        outputs = cb_params.net_outputs
        epoch, step = cb_params.get("cur_epoch_num", 1), cb_params.cur_batch_num
        if not all_finite(outputs):
            run_context.request_stop(f"epoch {epoch} step {step}: an output is NaN or Inf")
        if self._every and cb_params.cur_step_num - self._last >= self._every:
            self._last = cb_params.cur_step_num
            say(f"epoch: {epoch} step: {step}, loss is {loss_of(outputs)}")


def _plain(value: Any) -> Any:
    return value.asnumpy() if hasattr(value, "asnumpy") else value
