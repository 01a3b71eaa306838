"""Snapshots as bytes: msgpack with a closed set of ext types, the same limits on both sides.

| value | on the wire | read back as |
| --- | --- | --- |
| None, bool, int (64 bits), float, str, bytes | msgpack's own | the same |
| list, tuple | array | `FrozenList`: a tuple comes back as a list |
| dict with str keys | map | `FrozenDict` |
| datetime with a time zone | ext -1, msgpack's timestamp | datetime in UTC |
| numpy array; what has `dtype`, `shape` and `__array__` (`jax.Array`) | ext 1 | `Tensor` |
| numpy scalar | ext 2 | numpy scalar of the same dtype |
| `Reference` | ext 3, a msgpack map | `Reference` |

Subclasses of the types in the upper four rows are refused: an enum or a named tuple would come back
as something else.
"""

import datetime as dt
import functools
import reprlib
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgpack
import msgspec
import numpy as np

from .advice import advice, kind_of, reason, wrong_key
from .boxes import ARRAYS, FROZEN, PLAIN, check_boxes, check_depth, check_leaf, is_box
from .errors import SnapshotError
from .frozen import FrozenDict, FrozenList
from .limits import (
    LIMITS as LIMITS,
    MAX_SNAPSHOT as MAX_SNAPSHOT,
    VALUE_LIMITS as VALUE_LIMITS,
    WEIGHT as WEIGHT,
    Limits as Limits,
    TooMuch,
    check_size,
    scan,
)
from .tensor import pack_scalar, pack_tensor, tensor_tail, unpack_scalar, unpack_tensor


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in a snapshot for a live thing, or for an array too large to be in it.

    `kind` is its part in the run ("network", "optimizer", "dataset", "array", "object"), `type`
    the name of its type, `summary` a line for people, `id` what to fetch it by.
    """

    kind: str
    type: str
    summary: str
    id: str


TENSOR, SCALAR, REFERENCE = 1, 2, 3

_FAILURES = (TypeError, ValueError, OverflowError, struct.error)
_READ_FAILURES = (*_FAILURES, RecursionError)
# msgpack reserves room for as many items as a list says it has, so n bytes of nested lists cost up
# to n * n * 8 / 3 bytes before anything is read: 2.7 MiB at this n. What is longer is scanned.
_UNSCANNED = 1024


def pack(value: object, key: str = "value") -> bytes:
    """`value` as msgpack bytes, which `unpack` reads back.

    Raises:
        SnapshotError: for what msgpack or the limits cannot carry; names `key`, the type and, in a
            list or dict, the place.
    """
    try:
        kind = type(value)
        if kind not in PLAIN:
            if is_box(value):
                check_boxes(value)
            else:
                check_leaf(value)
        data: bytes = _packer().pack(value)
        check_size(len(data))
    except _FAILURES as error:
        raise SnapshotError(f"cb_params key {key!r}: {_complaint(value, key, error)}") from error
    return data


def pack_rows(rows: np.ndarray[Any, Any]) -> list[bytes]:
    """`pack` of each row of an array of one dimension or more, byte for byte, at once.

    Raises:
        SnapshotError: as for `pack`.
    """
    if not len(rows):
        return []
    first = rows[0, ...]
    packed, size = pack(first), first.nbytes
    header = packed[: len(packed) - size - tensor_tail(first)]
    tail = packed[len(header) + size :]
    elements = pack_tensor(rows)
    if not size:
        return [packed] * len(rows)
    places = range(0, len(rows) * size, size)
    return [b"".join((header, elements[at : at + size], tail)) for at in places]


def pack_list(packed: Sequence[bytes]) -> bytes:
    """The list of values that `pack` made: `pack` of the whole list, byte for byte."""
    header: bytes = msgpack.Packer().pack_array_header(len(packed))
    return b"".join((header, *packed))


def entry(key: str, packed: bytes) -> bytes:
    """A key and a value that `pack` made, as `join` takes them.

    Raises:
        SnapshotError: it is no key.
    """
    try:
        return _packed_key(key) + packed
    except _FAILURES as error:
        raise SnapshotError(f"cb_params as a whole: {error}") from error


def join(entries: Collection[bytes]) -> bytes:
    """The map of these entries: `pack` of the whole dict, byte for byte.

    Raises:
        SnapshotError: if the values, each within the limits, are too much together.
    """
    try:
        data = b"".join((_map_header(len(entries)), *entries))
        check_size(len(data))
        if len(data) * WEIGHT > LIMITS.items:
            scan(data, LIMITS)
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
        if len(data) > limits.size:
            raise ValueError(f"at most {limits.size} bytes are read")
        unscanned = len(data) <= _UNSCANNED and len(data) * WEIGHT <= limits.items
        if not unscanned:
            scan(data, limits)
        value: object = msgpack.unpackb(
            data,
            timestamp=3,
            list_hook=FrozenList,
            object_pairs_hook=_frozen_dict,
            ext_hook=_decode,
        )
        if unscanned and isinstance(value, FROZEN):
            check_depth(value, limits.depth)
    except _READ_FAILURES as error:
        reason = str(error) or type(error).__name__
        raise SnapshotError(f"these {len(data)} bytes are not a snapshot: {reason}") from error
    return value


def _packer() -> Any:
    # A new one each time: two threads in one Packer mix their bytes, and it costs 0.1 µs.
    return msgpack.Packer(default=_encode, strict_types=True, buf_size=1024)


@functools.lru_cache(maxsize=1024)
def _packed_key(key: str) -> bytes:
    if wrong := wrong_key(key):
        raise ValueError(wrong)
    data: bytes = msgpack.packb(key)
    return data


@functools.lru_cache(maxsize=1024)
def _map_header(length: int) -> bytes:
    header: bytes = msgpack.Packer().pack_map_header(length)
    return header


def _encode(value: Any) -> object:
    """What the packer takes for a value that is not msgpack's own."""
    kind = type(value)
    if kind in ARRAYS:
        return _ext(TENSOR, pack_tensor(value))
    if isinstance(value, np.generic):
        return _ext(SCALAR, pack_scalar(value))
    if kind is tuple or isinstance(value, FrozenList):
        return list(value)
    if isinstance(value, FrozenDict):
        return dict(value)
    if kind is Reference:
        return _ext(REFERENCE, _pack_reference(value))
    if kind is dt.datetime and value.utcoffset() is not None:
        return msgpack.Timestamp.from_datetime(value.astimezone(dt.UTC))
    if hasattr(kind, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape"):
        return _ext(TENSOR, pack_tensor(_as_numpy(value)))
    raise TypeError(advice(value))


def _ext(code: int, payload: bytes) -> tuple[int, bytes]:
    # Past ExtType.__new__, whose checks cost more than packing a loss does.
    ext: tuple[int, bytes] = tuple.__new__(msgpack.ExtType, (code, payload))
    return ext


def _decode(code: int, payload: bytes) -> object:
    if code == TENSOR:
        return unpack_tensor(payload)
    if code == SCALAR:
        return unpack_scalar(payload)
    if code == REFERENCE:
        return msgspec.msgpack.decode(payload, type=Reference)
    raise ValueError(f"ext type {code} is unknown")


def _pack_reference(reference: Reference) -> bytes:
    payload = msgspec.msgpack.encode(reference)
    try:
        msgspec.msgpack.decode(payload, type=Reference)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from error
    return payload


def _as_numpy(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("its mask would be lost; use value.filled(...)")
    try:
        return np.asarray(value)
    except Exception as error:  # whatever a foreign type raises, of a deleted buffer for example
        raise TypeError(f"numpy cannot read it: {error}") from error


def _frozen_dict(pairs: list[tuple[str, Any]]) -> FrozenDict:
    made = FrozenDict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one map")
    "".join(made)  # refuses bytes keys, which msgpack lets through
    return made


def _complaint(value: object, key: str, error: Exception) -> str:
    """What is wrong with a value that cannot be packed; its place is looked for only now."""
    if isinstance(error, TooMuch):
        return f"cannot pack {kind_of(value)} of {error}"
    return next(_faults(value, key, VALUE_LIMITS.depth), f"cannot pack {kind_of(value)}; {error}")


def _faults(value: Any, path: str, room: int) -> Iterator[str]:
    subject = kind_of(value) + (f" at {path}" if room < VALUE_LIMITS.depth else "")
    if not is_box(value):
        try:
            check_leaf(value)
            _packer().pack(value)
        except _FAILURES as error:
            yield f"cannot pack {subject}; {reason(value, error)}"
    elif not room:
        deepest = VALUE_LIMITS.depth
        yield f"cannot pack {subject}; lists and dicts nest at most {deepest} deep, without cycles"
    else:
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and (wrong := wrong_key(key)):
                yield f"cannot pack {subject}; {wrong}"
            yield from _faults(child, f"{path}[{reprlib.repr(key)}]", room - 1)
