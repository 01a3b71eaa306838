"""What a step gave: its loss as one number, and whether all of it is finite."""

from typing import Any

import numpy as np


def loss_of(outputs: Any) -> float:
    """The mean of the loss: `net_outputs`, or the first of a tuple."""
    return float(np.mean(outputs[0] if isinstance(outputs, (list, tuple)) else outputs))


def all_finite(outputs: Any) -> bool:
    """Whether no float that came along with the event, however nested, is NaN or Inf."""
    return all(map(_finite, _floats(outputs)))


def _floats(outputs: Any) -> list[Any]:
    if isinstance(outputs, dict):
        return [it for value in outputs.values() for it in _floats(value)]
    if isinstance(outputs, (list, tuple)):
        return [it for value in outputs for it in _floats(value)]
    return [outputs] if isinstance(outputs, (float, np.ndarray, np.generic)) else []


def _finite(value: Any) -> bool:
    if np.asarray(value).dtype.kind in "biu":
        return True
    return bool(np.isfinite(value).all())
