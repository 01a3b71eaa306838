"""Checks of constructor arguments: the type strictly, then the range (as MindSpore's do)."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from railbus.schemas.errors import ArgumentError, ArgumentTypeError


def count(name: str, value: Any, least: int) -> int:
    """`value`, an int of at least `least`.

    Raises:
        ArgumentTypeError: it is no int; a bool is none either.
        ArgumentError: it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name} must be an int, got {type(value).__name__} {value!r}")
    if value < least:
        raise ArgumentError(f"{name} must be at least {least}, got {value}")
    return value


def number(name: str, value: Any) -> float:
    """`value`, a finite number.

    Raises:
        ArgumentTypeError: it is no int or float; a bool is none either.
        ArgumentError: it is NaN or infinite.
    """
    real = _real(name, value, "a number")
    if not math.isfinite(real):
        raise ArgumentError(f"{name} must be finite, got {value}")
    return real


def seconds(name: str, value: Any) -> float:
    """`value`, a number of seconds above 0.

    Raises:
        ArgumentTypeError: it is no number.
        ArgumentError: it is not above 0.
    """
    real = _real(name, value, "seconds")
    if not real > 0:
        raise ArgumentError(f"{name} must be above 0 s, got {value}")
    return real


def positive(name: str, value: Any) -> float:
    """`value`, a number above 0.

    Raises:
        ArgumentTypeError: it is no number.
        ArgumentError: it is not above 0.
    """
    real = _real(name, value, "a number")
    if not real > 0:
        raise ArgumentError(f"{name} must be above 0, got {value}")
    return real


def flag(name: str, value: Any) -> bool:
    """`value`, a bool.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be a bool, got {type(value).__name__} {value!r}")
    return value


def function(name: str, value: Any) -> Callable[..., Any]:
    """`value`, something that can be called.

    Raises:
        ArgumentTypeError: it cannot.
    """
    if not callable(value):
        raise ArgumentTypeError(f"{name} must be callable, got {type(value).__name__} {value!r}")
    return value  # type: ignore[no-any-return]  # checked by callable()


def path(name: str, value: Any) -> Path:
    """`value`, a file or folder by a path that is not blank.

    Raises:
        ArgumentTypeError: it is no str and no path.
        ArgumentError: it is blank.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise ArgumentTypeError(f"{name} must be a path, got {type(value).__name__} {value!r}")
    if not os.fspath(value).strip():
        raise ArgumentError(f"{name} must not be blank")
    return Path(value)


def folder(name: str, value: Path) -> Path:
    """`value`, a folder that is there or can be made, and is made.

    Raises:
        ArgumentError: it cannot.
    """
    try:
        value.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{name}: no folder '{value}' can be made: {error.strerror}") from error
    return value


def _real(name: str, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name} must be {what}, got {type(value).__name__} {value!r}")
    return float(value)
