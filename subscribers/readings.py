"""What callbacks report: losses, hyperparameters and results of an event as plain values."""

from typing import Any

import numpy as np

from railbus.schemas.params import CallbackParams


class MeanLoss:
    """The mean loss of an epoch's steps, as `RunResult.history` has it."""

    def __init__(self) -> None:
        self._total, self._steps = 0.0, 0

    def add(self, loss: float) -> None:
        """One more step."""
        self._total += loss
        self._steps += 1

    @property
    def value(self) -> float | None:
        """The mean; None before the first step."""
        return self._total / self._steps if self._steps else None


def loss_of(cb_params: CallbackParams) -> float:
    """The loss of the step that has just ended."""
    outputs = cb_params.net_outputs
    return float(outputs[0] if isinstance(outputs, (list, tuple)) else outputs)


def plain(value: Any) -> Any:
    """`value` as Python numbers, lists and dicts; arrays become lists."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return np.asarray(value).tolist()


def results_of(cb_params: CallbackParams) -> dict[str, Any]:
    """What the epoch's validation found, plain; empty where there was none."""
    return {name: plain(value) for name, value in cb_params.get("eval_results", {}).items()}


def short(value: Any) -> str:
    """A number as people read it, anything else as it prints."""
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    return str(value)
