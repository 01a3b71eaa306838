"""Experiment trackers: what they are asked, and the callback that asks them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from railbus.schemas.errors import ArgumentTypeError

from .callback import Callback
from .checks import count
from .context import RunContext
from .readings import facts_of, loss_of, plain, scalars_of


class Tracker(ABC):
    """Where a run's numbers go; `Tracking` calls it, always from one thread per run.

    Subclass it for a service that Railbus has no adapter for. Times are Unix seconds of the
    events, which come somewhat later.
    """

    @abstractmethod
    def start(self, run_id: str, config: Mapping[str, Any], at: float) -> None:
        """A run begins."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        """Numbers of a step, by name; a step may come twice with different names."""

    @abstractmethod
    def end(self, status: str, at: float) -> None:
        """The run has ended: "completed", "stopped" or "failed"."""


class Tracking(Callback):
    """Sends a run to an experiment tracker.

    An observer without a bounded lag: a service that is slow makes a gap, which the run's end says,
    never a slow run. At `on_train_begin`: the run's facts, its hyperparameters and `config`. At
    `on_train_step_end`, every `every` steps: `train/loss` and each injected hyperparameter
    (`train/learning_rate`, ...). At `on_train_epoch_end` after a validation: `eval/<name>`. At
    `on_train_end` and `on_exception`: the status, so that a failed run is not shown as running. An
    error of the tracker is logged; the run goes on without it, and is marked as failed there, as
    far as that still works. Lightning's `logger`; Keras and MindSpore have none.

    Args:
        tracker: for example `WandbTracker("project")` or `MLflowTracker("experiment")`.
        every: steps from one entry to the next.
        config: your own settings, kept with the run.

    Raises:
        ArgumentTypeError, ArgumentError: `tracker` is no `Tracker`, `config` no dict, or `every` no
            int of at least 1.
    """

    observes = True

    def __init__(
        self, tracker: Tracker, every: int = 1, config: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(tracker, Tracker):
            raise ArgumentTypeError(f"tracker must be a Tracker, got {tracker!r}")
        if config is not None and not isinstance(config, Mapping):
            raise ArgumentTypeError(f"config must be a dict or None, got {config!r}")
        self._tracker, self._every = tracker, count("every", every, 1)
        self._config = dict(config or {})
        self._started = False

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start the tracker's run."""
        cb_params = run_context.original_args()
        config = {**facts_of(cb_params), **plain(run_context.hyperparams()), **self._config}
        self._tracker.start(run_context.event.run_id, config, run_context.wall_time())
        self._started = True

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Send the step's numbers when it is time."""
        cb_params = run_context.original_args()
        if cb_params.cur_step_num % self._every:
            return
        loss, values = loss_of(cb_params), plain(run_context.hyperparams())
        if loss is not None:
            values = {"loss": loss, **values}
        self._log("train", values, run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Send what the epoch's validation found."""
        self._log("eval", scalars_of(run_context.original_args()), run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """End the tracker's run."""
        self._end(run_context.original_args().status, run_context)

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """End it as failed."""
        self._end("failed", run_context)

    def _log(self, kind: str, values: Mapping[str, float], run_context: RunContext) -> None:
        if not values or not self._started:
            return
        named = {f"{kind}/{name}": value for name, value in values.items()}
        try:
            self._tracker.log(
                named, run_context.original_args().cur_step_num, run_context.wall_time()
            )
        except Exception:
            self._end("failed", run_context)
            raise

    def _end(self, status: str, run_context: RunContext) -> None:
        started, self._started = self._started, False
        if started:
            self._tracker.end(status, run_context.wall_time())
