"""Where two packed values differ: by bits, or by more than a tolerance."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from railbus.schemas.codec import VALUE_LIMITS, pack, unpack


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()  # what stands on a side that has no such thing


class Unlike(NamedTuple):
    """A place inside of a value, for example `["accuracy"]` or `[3]`, and what is there."""

    path: str
    left: Any
    right: Any


def unlike(left: bytes | None, right: bytes | None, tolerance: float | None) -> Unlike | None:
    """The first place where two packed values differ; None stands for no value.

    NaN equals NaN of the same bits, -0.0 differs from 0.0, and types count. The order of keys does
    not.

    Args:
        tolerance: how far numbers of the same type may be apart; NaN is then like any NaN.
    """
    if left == right:
        return None
    one, other = (NOTHING if it is None else unpack(it, VALUE_LIMITS) for it in (left, right))
    return next(_places("", one, other, tolerance), None)


def _places(path: str, left: Any, right: Any, tolerance: float | None) -> Iterator[Unlike]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            pair = left.get(key, NOTHING), right.get(key, NOTHING)
            yield from _places(f"{path}[{key!r}]", *pair, tolerance)
    elif isinstance(left, list) and isinstance(right, list):
        for place in range(max(len(left), len(right))):
            pair = _at(left, place), _at(right, place)
            yield from _places(f"{path}[{place}]", *pair, tolerance)
    elif _alike_arrays(left, right):
        for index in _elements(left, right, tolerance):
            yield Unlike(path + _shown(index), left[index], right[index])
    elif not _same(left, right, tolerance):
        yield Unlike(path, left, right)


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else NOTHING


def _shown(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _alike_arrays(left: Any, right: Any) -> bool:
    kinds = (np.ndarray, np.generic)
    if not (isinstance(left, kinds) and isinstance(right, kinds)):
        return False
    same = isinstance(left, np.ndarray) == isinstance(right, np.ndarray)
    return same and (left.dtype, left.shape) == (right.dtype, right.shape)


def _elements(left: Any, right: Any, tolerance: float | None) -> Iterator[tuple[int, ...]]:
    for index in np.ndindex(left.shape):
        if not _same(left[index], right[index], tolerance):
            yield index


def _same(left: Any, right: Any, tolerance: float | None) -> bool:
    if type(left) is not type(right):
        return False
    if pack(left) == pack(right):
        return True
    if (
        tolerance is None
        or isinstance(left, bool)
        or not isinstance(left, (int, float, np.generic))
    ):
        return False
    one, other = np.asarray(left, np.complex128), np.asarray(right, np.complex128)
    both_nan = bool(np.isnan(one) and np.isnan(other))
    return both_nan or bool(one == other) or bool(abs(one - other) <= tolerance)
