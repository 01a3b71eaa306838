"""`TensorBoard`: writes what a run measures into event files."""

from pathlib import Path

from .checks import count
from .context import RunContext
from .event_file import WritesEvents
from .readings import loss_of, plain, scalars_of


class TensorBoard(WritesEvents):
    """Writes loss, hyperparameters and validation results into an event file per run.

    An observer with a bounded lag of 4096 events: the run waits rather than lose a line. At
    `on_train_step_end`, every `every` steps counted over all epochs: `train/loss` and each
    injected hyperparameter (`train/learning_rate`, ...) as the event shows it. At
    `on_train_epoch_end` after a validation: `eval/<name>` of each single number it found. All at
    their step and calendar time, in
    `<log_dir>/events.out.tfevents.<Unix time>.<host>.<run_id>`, flushed every 5 s and at the end.
    A write that fails is logged and ends the writing, not the run. Keras has `TensorBoard`,
    Lightning `TensorBoardLogger`, MindSpore `SummaryCollector`.

    Args:
        log_dir: made when a run begins; runs may share it.
        every: steps from one entry to the next.

    Raises:
        ArgumentTypeError, ArgumentError: `log_dir` is no path or blank, `every` no int of at least
            1, or tensorboardX is not installed (`pip install 'railbus[tensorboard]'`).
    """

    def __init__(self, log_dir: str | Path, every: int = 1) -> None:
        self._every = count("every", every, 1)
        super().__init__("log_dir", log_dir)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Write the step's numbers when it is time."""
        cb_params = run_context.original_args()
        step = cb_params.cur_step_num
        if step % self._every:
            return
        loss, values = loss_of(cb_params), plain(run_context.hyperparams())
        if loss is not None:
            values = {"loss": loss, **values}
        values = {f"train/{name}": value for name, value in values.items()}
        self._file.scalars(values, step, run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Write what the epoch's validation found."""
        cb_params = run_context.original_args()
        results = {f"eval/{name}": value for name, value in scalars_of(cb_params).items()}
        self._file.scalars(results, cb_params.cur_step_num, run_context)
