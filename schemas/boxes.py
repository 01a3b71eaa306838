"""Values looked through before they are packed, and after they are read: lists, dicts, leaves."""

import itertools
from collections.abc import Iterable
from typing import Any

import msgpack
import numpy as np

from .advice import advice
from .frozen import FrozenDict, FrozenList
from .limits import LIMITS, TOO_DEEP, VALUE_LIMITS, WEIGHT, check_size, too_many
from .tensor import Tensor

PLAIN = frozenset((type(None), bool, int, float))
_TEXT = frozenset((str, bytes))
ARRAYS = frozenset((np.ndarray, Tensor))
FROZEN = (FrozenList, FrozenDict)
_BOXES = frozenset((list, tuple, dict, *FROZEN))
# What the packer takes by itself although it would not come back as it is.
_RAW = frozenset((bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp))


def check_depth(box: Any, room: int) -> None:
    """Refuse what was read and is nested deeper than `room`.

    Raises:
        ValueError: it is.
    """
    if not room:
        raise ValueError(TOO_DEEP)
    for child in box.values() if type(box) is FrozenDict else box:
        if type(child) in _BOXES:
            check_depth(child, room - 1)


def is_box(value: object) -> bool:
    """Whether it is a list, a tuple or a dict that may hold others."""
    return type(value) in _BOXES or isinstance(value, FROZEN)


def _size(leaf: Any) -> int:
    """A lower bound of the bytes it takes."""
    size = len(leaf) if type(leaf) in _TEXT else getattr(leaf, "nbytes", 0)
    return size if type(size) is int else 0


def check_leaf(value: object) -> None:
    """Refuse what the packer would take, but not give back as it is.

    Raises:
        TypeError, TooMuch: it is that, or too large.
    """
    if type(value) in _RAW:
        raise TypeError(advice(value))
    check_size(_size(value))


def check_boxes(value: object) -> None:
    """Refuse what is too much, level by level: so a cycle, or one list in many places, ends too.

    Raises:
        TypeError, ValueError: it is, or holds what the packer would not give back as it is.
    """
    items, size, depth, raw = 1, 0, 0, False
    keys: list[str] = []
    level: list[Iterable[Any]] = [(value,)]
    while level:
        if depth > VALUE_LIMITS.depth:
            raise ValueError(TOO_DEEP)
        below: list[Iterable[Any]] = []
        for child in itertools.chain.from_iterable(level):
            kind = type(child)
            if kind in PLAIN:
                continue
            if kind in _TEXT:
                size += len(child)
                continue
            items += WEIGHT - 1
            if not is_box(child):
                size += _size(child)
                raw = raw or kind in _RAW
                continue
            items += len(child)
            if isinstance(child, dict):
                items += len(child)
                keys += child
                child = child.values()
            below.append(child)
            if items > LIMITS.items:
                raise too_many(items, LIMITS)
        level = below
        depth += 1
    if items > LIMITS.items:
        raise too_many(items, LIMITS)
    check_size(size)
    if raw:
        raise TypeError("not msgpack's own")
    "".join(keys)
