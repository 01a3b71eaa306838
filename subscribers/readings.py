"""What callbacks that report a run read from `cb_params`: plain numbers by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from railbus.schemas.params import CallbackParams

FACTS = (
    "run_id epoch_num batch_num network loss_fn optimizer train_dataset parallel_mode "
    "device_number dataset_sink_mode"
).split()


class MeanLoss:
    """The mean loss of an epoch's steps, as `RunResult.history` has it."""

    def __init__(self, total: float = 0.0, steps: int = 0) -> None:
        self.total, self.steps = total, steps

    def add(self, loss: float) -> None:
        """One more step."""
        self.total += loss
        self.steps += 1

    @property
    def value(self) -> float | None:
        """The mean; None before the first step."""
        return self.total / self.steps if self.steps else None


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


def some(number: int, what: str) -> str:
    """So many of `what`, a noun in the singular."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def loss_of(cb_params: Mapping[str, Any]) -> float | None:
    """The mean loss of `net_outputs`; None where there is none, or only a reference to it."""
    outputs = cb_params.get("net_outputs")
    loss = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
    if isinstance(loss, (float, int, np.ndarray, np.generic)):
        return float(np.mean(np.asarray(loss, dtype=np.float64)))
    return None


def scalars_of(cb_params: Mapping[str, Any]) -> dict[str, float]:
    """What the epoch's validation found, as far as it is single numbers; `{}` without one."""
    results = cb_params.get("eval_results", {})
    return {name: float(value) for name, value in results.items() if np.size(value) == 1}


def facts_of(cb_params: Mapping[str, Any], names: Sequence[str] = FACTS) -> dict[str, Any]:
    """Facts of the run as plain values, live things by the names of their types."""
    found = {name: cb_params[name] for name in names if name in cb_params}
    plain = (str, int, float, bool)
    return {
        name: value if isinstance(value, plain) else getattr(value, "type", None)
        for name, value in found.items()
    }


def leaves_of(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of nested dicts and lists by their dotted name, in order."""
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        items = [(str(place), value) for place, value in enumerate(tree)]
    else:
        yield name, tree
        return
    for key, value in items:
        yield from leaves_of(value, f"{name}.{key}" if name else key)
