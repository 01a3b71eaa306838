"""`TerminateOnNaN`: stops a run whose outputs are no numbers any more."""

from .callback import Callback
from .context import RunContext
from .outputs import all_finite


class TerminateOnNaN(Callback):
    """Asks the run to stop at the first step with a NaN or Inf in any float output; a participant.

    At `on_train_step_end`, in every float of `net_outputs`: the loss and what comes with it. The
    reason names epoch and step. Called the same in Keras (which looks at the loss only); Lightning
    has `EarlyStopping(check_finite=True)` and MindSpore only `LossMonitor`, which raises.
    """

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Look at the step's outputs."""
        cb_params = run_context.original_args()
        if not all_finite(cb_params.net_outputs):
            at = f"epoch {cb_params.cur_epoch_num} step {cb_params.cur_batch_num}"
            run_context.request_stop(f"{at}: an output is NaN or Inf")
