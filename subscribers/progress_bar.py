"""`ProgressBar`: shows on the terminal how far a run is."""

from collections.abc import Mapping
from typing import Any

from .checks import count, seconds
from .closing import Closing
from .context import RunContext
from .optional import optional
from .outputs import loss_of
from .printing import say
from .readings import MeanLoss, results_of, short


class ProgressBar(Closing):
    """A live bar of the epoch: steps, loss, steps per second, time left; and of its validation.

    From `on_train_begin` to the run's end, however it ends. At `on_train_epoch_end` a line stays:
    `epoch 1/3: 400 steps, loss 0.1234, 812 steps/s, accuracy 0.91`, with the mean loss of the epoch
    and what its validation found. Where stdout is no terminal these lines are all there is. Rates
    and the time left are of the events' own time, the epoch's rate without its validation. No
    thread is started. A participant; silent in a lone `eval`. `ProgbarLogger` in Keras,
    `RichProgressBar` in Lightning; MindSpore has none.

    Args:
        refresh: seconds from one drawing of the bar to the next.
        total: steps per epoch, where the data set does not say how many it has.

    Raises:
        ArgumentTypeError, ArgumentError: `refresh` is no number above 0, `total` no int above 0;
            and at the run's begin where `rich` is not installed.
    """

    def __init__(self, refresh: float = 0.1, total: int | None = None) -> None:
        self._refresh = seconds("refresh", refresh)
        self._total = None if total is None else count("total", total, 1)
        self._bar: _Bar | None = None

    def on_train_begin(self, run_context: RunContext) -> None:
        """Take the terminal, if there is one."""
        console = optional("rich.console", "rich").Console()
        self._bar = _Bar(console, self._refresh) if console.is_terminal else None
        self._epochs = run_context.original_args().epoch_num
        self._last: int | None = None
        self._title, self._mean = "", MeanLoss()
        self._began = self._ended = run_context.now()

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """An empty bar for the epoch."""
        cb_params = run_context.original_args()
        epoch = cb_params.cur_epoch_num
        self._last = epoch + self._epochs - 1 if self._last is None else self._last
        self._title = f"epoch {epoch}/{self._last}"
        self._mean, self._began = MeanLoss(), run_context.now()
        self._ended = self._began
        if self._bar is not None:
            self._bar.open(self._title, cb_params.batch_num or self._total, self._began)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """One more step."""
        cb_params = run_context.original_args()
        loss = loss_of(cb_params.net_outputs)
        self._mean.add(loss)
        self._ended = run_context.now()
        if self._bar is not None:
            self._bar.advance(cb_params.cur_batch_num, self._ended, f"loss {short(loss)}")

    def on_eval_begin(self, run_context: RunContext) -> None:
        """A bar for the epoch's validation."""
        cb_params = run_context.original_args()
        if self._bar is not None and "epoch_num" in cb_params:
            self._bar.open(f"{self._title} validation", cb_params.batch_num, run_context.now())

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """One more batch of it."""
        cb_params = run_context.original_args()
        if self._bar is not None and "epoch_num" in cb_params:
            self._bar.advance(cb_params.cur_batch_num, run_context.now())

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """The line that stays."""
        cb_params = run_context.original_args()
        steps, spent = cb_params.cur_batch_num, self._ended - self._began
        parts = [f"{steps} steps"]
        if self._mean.value is not None:
            parts.append(f"loss {short(self._mean.value)}")
        if spent > 0:
            parts.append(f"{short(steps / spent)} steps/s")
        parts += [f"{name} {short(value)}" for name, value in results_of(cb_params).items()]
        say(f"{self._title}: {', '.join(parts)}")

    def state_dict(self) -> dict[str, Any]:
        """The number of the last epoch, and what the present one has so far."""
        spent = self._ended - self._began
        loss = {"total": self._mean.total, "steps": self._mean.steps}
        return {"last": self._last, "title": self._title, "spent": spent, "loss": loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; what was between the two runs does not count."""
        self._last, self._title = state["last"], state["title"]
        self._mean, self._began = MeanLoss(**state["loss"]), self._ended - state["spent"]
        if self._bar is not None:
            self._bar.rename(self._title)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Bar:
    """One bar at a time, drawn when it is due; its clock is the events' own."""

    def __init__(self, console: Any, refresh: float) -> None:
        rich = optional("rich.progress", "rich")
        self._refresh, self._now, self._drawn = refresh, 0.0, 0.0
        self._progress = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[note]}"),
            rich.TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            get_time=lambda: self._now,
        )
        self._progress.start()

    def open(self, title: str, total: int | None, now: float) -> None:
        """A new bar in the place of the present one."""
        self._now = self._drawn = now
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._progress.add_task(title, total=total, note="")
        self._progress.refresh()

    def rename(self, title: str) -> None:
        """The present bar, if there is one, goes by that title."""
        for task in self._progress.task_ids:
            self._progress.update(task, description=title)
        self._progress.refresh()

    def advance(self, completed: int, now: float, note: str = "") -> None:
        """So much is done; draw it if it is due."""
        if now - self._drawn < self._refresh:
            return
        self._now = self._drawn = now
        task = self._progress.tasks[0]
        self._progress.update(task.id, completed=completed)
        if task.speed:
            note = f"{note} {short(float(task.speed))} steps/s".lstrip()
        self._progress.update(task.id, note=note)
        self._progress.refresh()

    def close(self) -> None:
        """The bar goes; what was printed stays."""
        self._progress.stop()
