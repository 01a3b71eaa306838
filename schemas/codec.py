"""Snapshots as bytes: msgpack with a closed set of ext types, the same limits on both sides.

| value | on the wire | read back as |
| --- | --- | --- |
| None, bool, int (64 bits), float, str, bytes | msgpack's own | the same |
| list, tuple | array | `FrozenList`: a tuple comes back as a list |
| dict with str keys | map | `FrozenDict` |
| datetime with a time zone | ext -1, msgpack's timestamp | datetime in UTC |
| numpy array; what has `dtype`, `shape` and `__array__` (`jax.Array`) | ext 1 | `Tensor` |
| numpy scalar | ext 2 | numpy scalar of the same dtype |
| `Reference` | ext 3 | `Reference` |

Ext 1 holds the elements (little-endian, C order; first, so that they are aligned when viewed in
place), each dimension as uint32, the dtype's place in `DTYPES`, the number of dimensions. Ext 2
holds the element and the dtype's place, ext 3 a msgpack map. Subclasses of the types in the upper
four rows are refused: an enum or a named tuple would come back as something else.
"""

import datetime as dt
import enum
import functools
import itertools
import os
import reprlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import msgpack
import msgspec
import numpy as np

from .errors import SnapshotError
from .frozen import FrozenDict, FrozenList
from .tensor import Tensor


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot may cost whoever reads it.

    `size` is in bytes. `depth` counts lists and dicts inside one another, the outermost included.
    `items` counts keys and values on all levels; each list, dict and ext value counts `WEIGHT`.
    At the defaults any bytes are read or refused within 10 ms and 8 MiB of memory.
    """

    size: int = 1 << 20
    depth: int = 16
    items: int = 10_000


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in a snapshot for a live thing, or for an array too large to be in it.

    `kind` is its part in the run ("network", "optimizer", "dataset", "array", "object"), `type`
    the name of its type, `summary` a line for people, `id` what to fetch it by.
    """

    kind: str
    type: str
    summary: str
    id: str


WEIGHT = 4
LIMITS = Limits()
# One level less than a snapshot: a value stands in the snapshot's own map.
VALUE_LIMITS = Limits(depth=LIMITS.depth - 1)
MAX_SNAPSHOT = LIMITS.size

TENSOR, SCALAR, REFERENCE = 1, 2, 3
# A dtype's place is on the wire: new ones go to the end.
DTYPES = (
    *map(np.dtype, "? i1 <i2 <i4 <i8 u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split()),
    np.dtype(ml_dtypes.bfloat16),
)

_PLACES = {dtype: place for place, dtype in enumerate(DTYPES)}
_PLAIN = frozenset((type(None), bool, int, float))
_TEXT = frozenset((str, bytes))
_FROZEN = frozenset((FrozenList, FrozenDict))
_ARRAYS = frozenset((np.ndarray, Tensor))
_BOXES = (list, tuple, dict)
# msgpack reserves room for as many items as a list says it has: nested lists of n bytes make it
# reserve up to n * n * 8 / 3 bytes, 2.7 MiB at this n. Whatever is longer is scanned first.
_UNSCANNED = 1024

_FAILURES = (TypeError, ValueError, OverflowError, struct.error)
_READ_FAILURES = (*_FAILURES, RecursionError, msgpack.UnpackException, msgspec.MsgspecError)


def pack(value: object, key: str = "value") -> bytes:
    """`value` as msgpack bytes, which `unpack` reads back.

    Raises:
        SnapshotError: for what msgpack or the limits cannot carry; names `key`, the type and, in a
            list or dict, the place.
    """
    try:
        if isinstance(value, _BOXES):
            _check_boxes(value)
        elif type(value) not in _PLAIN:
            _check_size(_size(value))
        # A new one each time: two threads in one Packer mix their bytes, and it costs 0.1 µs.
        data: bytes = msgpack.Packer(default=_encode, strict_types=True).pack(value)
        _check_size(len(data))
    except _FAILURES as error:
        raise SnapshotError(f"cb_params key {key!r}: {_complaint(value, key, error)}") from error
    return data


def join(packed: Mapping[str, bytes]) -> bytes:
    """The map of these keys to values that `pack` made: `pack` of the whole dict, byte for byte.

    Raises:
        SnapshotError: if the values, each within the limits, are too much together.
    """
    try:
        parts = [_map_header(len(packed))]
        for key, value in packed.items():
            parts += _packed_key(key), value
        data = b"".join(parts)
        _check_size(len(data))
        if len(data) * WEIGHT > LIMITS.items:
            _scan(data, LIMITS)
    except _FAILURES as error:
        raise SnapshotError(f"cb_params as a whole: {error}") from error
    return data


def unpack(data: bytes, limits: Limits = LIMITS) -> object:
    """What `pack` or `join` was given, read-only all through.

    Pass `VALUE_LIMITS` for a single value that is going to be joined with others.

    Raises:
        SnapshotError: for any other bytes, before much is built from them.
    """
    try:
        unscanned = len(data) <= _UNSCANNED and len(data) * WEIGHT <= limits.items
        if not unscanned:
            _scan(data, limits)
        value: object = msgpack.unpackb(
            data,
            timestamp=3,
            list_hook=FrozenList,
            object_pairs_hook=_frozen_dict,
            ext_hook=_decode,
        )
        if unscanned and type(value) in _FROZEN:
            _check_depth(value, limits.depth)
    except _READ_FAILURES as error:
        raise SnapshotError(f"not a snapshot: {error or type(error).__name__}") from error
    return value


class _TooMuch(ValueError):
    """Raised for a value of which no single part is to blame."""


def _check_size(size: int) -> None:
    if size > MAX_SNAPSHOT:
        raise _TooMuch(
            f"{size} bytes, at most {MAX_SNAPSHOT} fit into a snapshot; keep large data in the "
            "callback or in a file"
        )


def _check_items(items: int) -> None:
    if items > LIMITS.items:
        raise _TooMuch(
            f"{items} items, at most {LIMITS.items} fit into a snapshot; make it a numpy array, or "
            "keep it in the callback or in a file"
        )


def _size(leaf: object) -> int:
    """At least how many bytes it takes; 0 where only packing can tell."""
    size = len(leaf) if isinstance(leaf, (str, bytes)) else getattr(leaf, "nbytes", 0)
    return size if type(size) is int else 0


def _check_boxes(value: object) -> None:
    """Go down level by level, so that a cycle, or a part that stands in many places, ends too."""
    items, size, keys = 1, 0, []
    level: list[Iterable[Any]] = [(value,)]
    for _ in range(VALUE_LIMITS.depth + 1):
        below: list[Iterable[Any]] = []
        for child in itertools.chain.from_iterable(level):
            if isinstance(child, dict):
                items += WEIGHT - 1 + 2 * len(child)
                keys += child
                below.append(child.values())
            elif isinstance(child, (list, tuple)):
                items += WEIGHT - 1 + len(child)
                below.append(child)
            elif type(child) in _TEXT:
                size += len(child)
            elif type(child) not in _PLAIN:
                items += WEIGHT - 1
                size += _size(child)
            _check_items(items)
        level = below
    if level:
        raise ValueError("nested too deep")
    _check_size(size)
    "".join(keys)


@functools.lru_cache(maxsize=1024)
def _packed_key(key: str) -> bytes:
    if type(key) is not str:
        raise TypeError(f"keys are str, got {type(key).__name__} {reprlib.repr(key)}")
    data: bytes = msgpack.packb(key)
    return data


@functools.lru_cache(maxsize=1024)
def _map_header(length: int) -> bytes:
    header: bytes = msgpack.Packer().pack_map_header(length)
    return header


def _encode(value: Any) -> object:
    """What stands for a value that is not msgpack's own: the packer's `default`."""
    kind = type(value)
    if kind in _ARRAYS:
        return _tensor_ext(value)
    if isinstance(value, np.generic):
        place, elements = _elements(np.asarray(value))
        return _ext(SCALAR, elements + bytes((place,)))
    if kind is tuple or isinstance(value, FrozenList):
        return list(value)
    if isinstance(value, FrozenDict):
        return dict(value)
    if kind is Reference:
        return _ext(REFERENCE, _reference_payload(value))
    if kind is dt.datetime:
        return _timestamp(value)
    if hasattr(kind, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape"):
        return _tensor_ext(_as_numpy(value))
    raise TypeError(_advice(value))
