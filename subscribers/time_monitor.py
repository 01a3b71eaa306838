"""`TimeMonitor`: prints how long epochs take."""

from collections.abc import Mapping
from typing import Any

from .callback import Callback
from .checks import count, flag
from .context import RunContext
from .printing import say


class TimeMonitor(Callback):
    """Prints the time of each epoch of training and of each evaluation, and the time per step.

    At `on_train_epoch_end`: `Train epoch time: 7388.254 ms, per step time: 7.877 ms`; at
    `on_eval_epoch_end` the same with `Eval`. Training's time ends before the validation begins, and
    is divided by the steps that were run (MindSpore's `TimeMonitor` shows the validation's time
    there, and divides by all steps of a full epoch). Times are the events' own, which
    are the device's where it runs ahead of the callbacks (docs/run-ahead.md). A participant.
    `Timer` in Lightning measures the whole run; Keras has none.

    Args:
        data_size: steps to divide by instead; None takes those that were run.
        data_time: add the time spent outside the steps, ` (data time: 0.123 ms)` per step: reading
            data, and callbacks at the end of steps.

    Raises:
        ArgumentTypeError, ArgumentError: `data_size` is no int above 0, `data_time` no bool.
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        self._size = None if data_size is None else count("data_size", data_size, 1)
        self._data_time = flag("data_time", data_time)
        self._clocks = {"Train": _Clock(), "Eval": _Clock()}

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """The epoch's time begins."""
        self._clocks["Train"] = _Clock(run_context.now())

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Its data is there."""
        self._clocks["Train"].begin_step(run_context.now())

    def on_train_step_end(self, run_context: RunContext) -> None:
        """One more step."""
        self._clocks["Train"].end_step(run_context.now())

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print the epoch's time."""
        self._print("Train")

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """The evaluation's time begins."""
        self._clocks["Eval"] = _Clock(run_context.now())

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """Its data is there."""
        self._clocks["Eval"].begin_step(run_context.now())

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """One more step."""
        self._clocks["Eval"].end_step(run_context.now())

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """Print the evaluation's time."""
        self._print("Eval")

    def state_dict(self) -> dict[str, Any]:
        """What the epoch has taken so far."""
        return self._clocks["Train"].state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Measure on from there; what was between the two runs does not count."""
        self._clocks["Train"].load_state_dict(state)

    def _print(self, mode: str) -> None:
        clock = self._clocks[mode]
        steps = self._size or clock.steps
        if not steps:
            return
        line = f"{mode} epoch time: {clock.total * 1e3:5.3f} ms"
        line += f", per step time: {clock.total * 1e3 / steps:5.3f} ms"
        if self._data_time:
            line += f" (data time: {clock.waiting * 1e3 / steps:5.3f} ms)"
        say(line)


class _Clock:
    """One epoch in seconds of the run, up to the end of its last step."""

    def __init__(self, begin: float = 0.0) -> None:
        self._begin = self._last = begin
        self.steps, self.waiting = 0, 0.0

    @property
    def total(self) -> float:
        return self._last - self._begin

    def begin_step(self, now: float) -> None:
        self.waiting += now - self._last

    def end_step(self, now: float) -> None:
        self.steps += 1
        self._last = now

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "waiting": self.waiting, "total": self.total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self.waiting = state["steps"], state["waiting"]
        self._begin = self._last - state["total"]
