"""The check of a number that callbacks assign and the compiled step reads."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import ArgumentError


def like(name: str, shown: Any) -> Callable[[Any], Any]:
    """A function that takes a new value of `cb_params.<name>`, and gives it in the type of `shown`.

    It raises ArgumentError for what is no finite number of the same shape, or not in that type.
    """
    old = np.asarray(shown)

    def check(value: Any) -> Any:
        array = np.asarray(value)
        numeric = array.dtype.kind in "biuf" and array.shape == old.shape
        if not numeric or not np.isfinite(array).all():
            raise ArgumentError(
                f"cb_params.{name} takes a finite number like {shown!r}, got {value!r}"
            )
        with np.errstate(over="ignore"):
            cast = array.astype(old.dtype)
        if not np.isfinite(cast).all():
            raise ArgumentError(f"cb_params.{name} is {old.dtype}, which cannot hold {value!r}")
        return cast[()]

    return check
