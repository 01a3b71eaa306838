"""`StopAtTime`: stops a run after a while."""

from .callback import Callback
from .checks import seconds
from .context import RunContext


class StopAtTime(Callback):
    """Asks the run to stop at the first step that ends after `run_time` seconds.

    At `on_train_step_end`, and at `on_eval_step_end` of a validation, where it stops training too.
    The time is that of the events, from the run's begin; a resumed run counts what it had. A lone
    `eval` goes on. A participant. `StopTimeMonitor` in MindSpore's tutorials, `Timer(duration)` in
    Lightning; Keras has none.

    Args:
        run_time: in seconds.

    Raises:
        ArgumentTypeError, ArgumentError: `run_time` is no number above 0.
    """

    def __init__(self, run_time: float) -> None:
        self._run_time = seconds("run_time", run_time)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Stop when the time is over."""
        if run_context.now() >= self._run_time:
            run_context.request_stop(f"{self._run_time:g} s are over")

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """The same in a validation; a lone evaluation goes on."""
        if "epoch_num" in run_context.original_args() and run_context.now() >= self._run_time:
            run_context.request_stop(f"{self._run_time:g} s are over", scope="train")
