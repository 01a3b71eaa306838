"""The single numbers of events: rows for tables and event files."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from railbus.schemas.events import Committed
from railbus.schemas.hooks import Hook
from railbus.schemas.params import FACTS, Snapshot

from .readings import loss_of

ROWS = frozenset(
    (Hook.TRAIN_STEP_END, Hook.EVAL_STEP_END, Hook.EVAL_END, Hook.TRAIN_EPOCH_END)
)  # events that have a row


def numbers_of(entry: Committed, cb_params: Snapshot) -> dict[str, float | int]:
    """The loss of a step as `loss`, and each single number in `cb_params` by its dotted name.

    These are injected hyperparameters (`learning_rate`), results of a validation
    (`eval_results.accuracy`) and the callbacks' own keys; counters and facts are left out. A key
    of the callbacks' own that is named `loss` comes as `cb_params.loss`.
    """
    found: dict[str, float | int] = {}
    loss = loss_of(cb_params) if entry.event.hook.is_step else None
    if loss is not None:
        found["loss"] = loss
    shown = {key: value for key, value in cb_params.items() if key not in FACTS}
    for name, number in _numbers({**shown, "eval_results": results_of(cb_params)}):
        found[f"cb_params.{name}" if name == "loss" else name] = number
    return found


def results_of(cb_params: Snapshot) -> dict[str, float | int]:
    """The single numbers of a validation's results."""
    results = cb_params.get("eval_results") or cb_params.get("metrics")
    return dict(_numbers(results)) if isinstance(results, dict) else {}


def _numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float | int]]:
    for key, value in values.items():
        name = above + key
        if isinstance(value, dict):
            yield from _numbers(value, f"{name}.")
        elif isinstance(value, (bool, int, float, np.generic, np.ndarray)) and np.size(value) == 1:
            number = np.asarray(value).reshape(()).tolist()
            if isinstance(number, (bool, int, float)):
                yield name, int(number) if isinstance(number, bool) else number
