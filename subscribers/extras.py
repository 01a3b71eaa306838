"""Packages that only some callbacks need: imported when such a callback is made."""

import importlib
from typing import Any

from railbus.schemas.errors import ArgumentError


def imported(module: str, extra: str) -> Any:
    """The module.

    Raises:
        ArgumentError: it is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"{module} cannot be imported ({error}); install it with pip install 'railbus[{extra}]'"
        ) from error
