"""`StopAtStep`: stops a run at a step or an epoch."""

from railbus.schemas.errors import ArgumentError

from .callback import Callback
from .checks import count
from .context import RunContext


class StopAtStep(Callback):
    """Asks the run to stop when a step or an epoch has ended, whichever comes first; a participant.

    At `on_train_step_end` and `on_train_epoch_end`. Lightning's `max_steps` and `max_epochs`;
    MindSpore and Keras have none.

    Args:
        step: the last step of the run, counted from 1 over all epochs.
        epoch: the last epoch, as `cur_epoch_num` counts; a run that begins later stops after its
            first one.

    Raises:
        ArgumentTypeError, ArgumentError: neither is given, or one is no int of at least 1.
    """

    def __init__(self, step: int | None = None, epoch: int | None = None) -> None:
        if step is None and epoch is None:
            raise ArgumentError("StopAtStep needs a step or an epoch")
        self._step = None if step is None else count("step", step, 1)
        self._epoch = None if epoch is None else count("epoch", epoch, 1)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Stop after the step."""
        if self._step is not None and run_context.original_args().cur_step_num >= self._step:
            run_context.request_stop(f"step {self._step} has ended")

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Stop after the epoch."""
        if self._epoch is not None and run_context.original_args().cur_epoch_num >= self._epoch:
            run_context.request_stop(f"epoch {self._epoch} has ended")
