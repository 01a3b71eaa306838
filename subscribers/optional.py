"""Packages that only some callbacks use, imported when one of them needs its own."""

from importlib import import_module
from typing import Any

from railbus.schemas.errors import ArgumentError


def optional(module: str, extra: str) -> Any:
    """The module of that name.

    Raises:
        ArgumentError: it is not installed; names the extra that brings it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"{module} is not installed; install it with pip install 'railbus[{extra}]'"
        ) from error
