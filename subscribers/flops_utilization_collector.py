"""`FlopsUtilizationCollector`: how much of the device's computing power a run uses."""

from collections.abc import Mapping
from typing import Any

from railbus.schemas.errors import ArgumentError

from .callback import Callback
from .checks import count, flag, positive
from .context import RunContext
from .printing import say


class FlopsUtilizationCollector(Callback):
    """Prints what a step computes, and which part of the device's power the steps have used.

    At `on_train_begin`: `Full model flops is 2048.0, Full hardware flops is 2304.0, Shard model
    flops is 2048.0, Shard hardware flops is 2304.0.` At `on_train_step_end`, every `data_size`
    steps counted over all epochs: `Train per step time: 1.317 ms mfu:48.59% hfu:48.59%`, the mean
    over those steps. Model flops are XLA's count of the step as it is written, hardware flops that
    of the step as it is compiled, which it is alone for that (see `cb_params.train_network.cost`);
    nan where XLA knows none. Times are the events' own; validations, and what happens between
    epochs, are left out. A participant. MindSpore's collector of that name, which is silent at the
    multiples of `data_size`, so for 1 always; Lightning's `ThroughputMonitor` logs it, Keras has
    none.

    Args:
        data_size: steps from one line to the next.
        computility: peak of one device, in floating-point operations per second.
        full_flops: print the flops of the whole step too; False only those of one device's part.
        enable_ma_collector: not supported; False.

    Attributes:
        mfu, hfu: what was printed last, 1 is the peak; None before that.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
    """

    def __init__(
        self,
        data_size: int,
        computility: float = 1,
        full_flops: bool = True,
        enable_ma_collector: bool = False,
    ) -> None:
        if flag("enable_ma_collector", enable_ma_collector):
            raise ArgumentError("enable_ma_collector is not supported: there is no such service")
        self._size = count("data_size", data_size, 1)
        self._peak = positive("computility", computility)
        self._full = flag("full_flops", full_flops)
        self.mfu: float | None = None
        self.hfu: float | None = None

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew; print what a step computes."""
        self.mfu = self.hfu = None
        self._seconds, self._steps = 0.0, 0
        cb_params = run_context.original_args()
        cost, devices = cb_params.train_network.cost, cb_params.device_number
        full = [_known(cost.model_flops), _known(cost.hardware_flops)]
        shard = [flops / devices for flops in full]
        self._model, self._hardware = shard
        parts = [("Full", full), ("Shard", shard)] if self._full else [("Shard", shard)]
        known = ", ".join(
            f"{part} {kind} flops is {flops}"
            for part, both in parts
            for kind, flops in zip(("model", "hardware"), both, strict=True)
        )
        say(f"{known}.")

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """What was between the epochs does not count."""
        self._since = run_context.now()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """One more step; print what is due."""
        now = run_context.now()
        self._seconds, self._steps = self._seconds + now - self._since, self._steps + 1
        self._since = now
        if self._steps < self._size or not self._seconds:
            return
        each = self._seconds / self._steps
        self.mfu, self.hfu = self._model / each / self._peak, self._hardware / each / self._peak
        say(f"Train per step time: {each * 1e3:.3f} ms mfu:{self.mfu:.2%} hfu:{self.hfu:.2%}")
        self._seconds, self._steps = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """The time since the last line, in how many steps, and what that line said."""
        return {"seconds": self._seconds, "steps": self._steps, "mfu": self.mfu, "hfu": self.hfu}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Measure on from there; what was between the two runs does not count."""
        self._seconds, self._steps = state["seconds"], state["steps"]
        self.mfu, self.hfu = state["mfu"], state["hfu"]


def _known(flops: float | None) -> float:
    return float("nan") if flops is None else flops
