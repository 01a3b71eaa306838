"""`Threshold`: stops a run when a value crosses a bound."""

from railbus.schemas.errors import ArgumentError

from .callback import Callback
from .checks import number
from .context import RunContext
from .monitor import Monitor
from .outputs import loss_of


class Threshold(Callback):
    """Asks the run to stop when a value is above or below a bound; a participant.

    With `monitor="loss"` at `on_train_step_end`, each step's training loss; with any other name at
    `on_train_epoch_end`, the result of the epoch's validation. NaN crosses no bound (see
    `TerminateOnNaN`). Lightning's `EarlyStopping` has it as `stopping_threshold` and
    `divergence_threshold`, for validations only; MindSpore and Keras have none.

    Args:
        monitor: `"loss"`, or a result of the validation.
        above: stop when the value is larger than it.
        below: stop when the value is smaller than it.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work, or no bound at all; in a
            run that has no validation, or none with that result.
    """

    def __init__(
        self, monitor: str, above: float | None = None, below: float | None = None
    ) -> None:
        self._monitor = Monitor(monitor)
        if above is None and below is None:
            raise ArgumentError("a Threshold needs a bound, above or below")
        self._above = None if above is None else number("above", above)
        self._below = None if below is None else number("below", below)
        if self._above is not None and self._below is not None and self._above < self._below:
            raise ArgumentError(
                f"every value is above {above} or below {below}, so the run would stop at once"
            )

    def on_train_begin(self, run_context: RunContext) -> None:
        """Look whether the run has the value."""
        self._monitor.begin(run_context.original_args())

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Compare the step's loss."""
        cb_params = run_context.original_args()
        if self._monitor.name == "loss":
            at = f"epoch {cb_params.cur_epoch_num} step {cb_params.cur_batch_num}"
            self._compare(run_context, loss_of(cb_params.net_outputs), at)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Compare the validation's result."""
        cb_params = run_context.original_args()
        if self._monitor.name == "loss":
            return
        value = self._monitor.value(cb_params)
        if value is not None:
            self._compare(run_context, value, f"epoch {cb_params.cur_epoch_num}")

    def _compare(self, run_context: RunContext, value: float, at: str) -> None:
        shown = f"{at}: {self._monitor.name} is {value:g}"
        if self._above is not None and value > self._above:
            run_context.request_stop(f"{shown}, above {self._above:g}")
        if self._below is not None and value < self._below:
            run_context.request_stop(f"{shown}, below {self._below:g}")
