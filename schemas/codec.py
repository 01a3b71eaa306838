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
import enum
import functools
import itertools
import os
import reprlib
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgpack
import msgspec
import numpy as np

from .errors import SnapshotError
from .frozen import FrozenDict, FrozenList
from .tensor import (
    Tensor,
    pack_scalar,
    pack_tensor,
    tensor_tail,
    unpack_scalar,
    unpack_tensor,
)


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

_PLAIN = frozenset((type(None), bool, int, float))
_TEXT = frozenset((str, bytes))
_ARRAYS = frozenset((np.ndarray, Tensor))
_FROZEN = (FrozenList, FrozenDict)
_BOXES = frozenset((list, tuple, dict, *_FROZEN))
# What the packer takes by itself although it would not come back as it is.
_RAW = frozenset((bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp))
_FAILURES = (TypeError, ValueError, OverflowError, struct.error)
_READ_FAILURES = (*_FAILURES, RecursionError)
# msgpack reserves room for as many items as a list says it has, so n bytes of nested lists cost up
# to n * n * 8 / 3 bytes before anything is read: 2.7 MiB at this n. What is longer is scanned.
_UNSCANNED = 1024
_TOO_DEEP = "lists and dicts are nested too deep"


def pack(value: object, key: str = "value") -> bytes:
    """`value` as msgpack bytes, which `unpack` reads back.

    Raises:
        SnapshotError: for what msgpack or the limits cannot carry; names `key`, the type and, in a
            list or dict, the place.
    """
    try:
        kind = type(value)
        if kind not in _PLAIN:
            if _is_box(value):
                _check_boxes(value)
            else:
                _check_leaf(value)
        data: bytes = _packer().pack(value)
        _check_size(len(data))
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
        if len(data) > limits.size:
            raise ValueError(f"at most {limits.size} bytes are read")
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
        if unscanned and isinstance(value, _FROZEN):
            _check_depth(value, limits.depth)
    except _READ_FAILURES as error:
        reason = str(error) or type(error).__name__
        raise SnapshotError(f"these {len(data)} bytes are not a snapshot: {reason}") from error
    return value


def _packer() -> Any:
    # A new one each time: two threads in one Packer mix their bytes, and it costs 0.1 µs.
    return msgpack.Packer(default=_encode, strict_types=True, buf_size=1024)


@functools.lru_cache(maxsize=1024)
def _packed_key(key: str) -> bytes:
    if wrong := _wrong_key(key):
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
    if kind in _ARRAYS:
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
    raise TypeError(_advice(value))


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


class _TooMuch(ValueError):
    """Raised for a value of which no single part is to blame."""


def _check_size(size: int) -> None:
    if size > MAX_SNAPSHOT:
        raise _TooMuch(
            f"{size} bytes, at most {MAX_SNAPSHOT} fit into a snapshot; keep large data in the "
            "callback or in a file"
        )


def _too_many(items: int, limits: Limits) -> _TooMuch:
    return _TooMuch(
        f"{items} items or more, at most {limits.items} fit into a snapshot; use a numpy array, or "
        "keep them in the callback or in a file"
    )


def _check_depth(box: Any, room: int) -> None:
    if not room:
        raise ValueError(_TOO_DEEP)
    for child in box.values() if type(box) is FrozenDict else box:
        if type(child) in _BOXES:
            _check_depth(child, room - 1)


def _is_box(value: object) -> bool:
    return type(value) in _BOXES or isinstance(value, _FROZEN)


def _size(leaf: Any) -> int:
    """A lower bound of the bytes it takes."""
    size = len(leaf) if type(leaf) in _TEXT else getattr(leaf, "nbytes", 0)
    return size if type(size) is int else 0


def _check_leaf(value: object) -> None:
    if type(value) in _RAW:
        raise TypeError(_advice(value))
    _check_size(_size(value))


def _check_boxes(value: object) -> None:
    """Refuse what is too much, level by level: so a cycle, or one list in many places, ends too."""
    items, size, depth, raw = 1, 0, 0, False
    keys: list[str] = []
    level: list[Iterable[Any]] = [(value,)]
    while level:
        if depth > VALUE_LIMITS.depth:
            raise ValueError(_TOO_DEEP)
        below: list[Iterable[Any]] = []
        for child in itertools.chain.from_iterable(level):
            kind = type(child)
            if kind in _PLAIN:
                continue
            if kind in _TEXT:
                size += len(child)
                continue
            items += WEIGHT - 1
            if not _is_box(child):
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
                raise _too_many(items, LIMITS)
        level = below
        depth += 1
    if items > LIMITS.items:
        raise _too_many(items, LIMITS)
    _check_size(size)
    if raw:
        raise TypeError("not msgpack's own")
    "".join(keys)


class _Head(NamedTuple):
    """What the first byte of a msgpack token says about the rest."""

    jump: int = 1  # bytes up to the end, or to what the length counts
    width: int = 0  # bytes of the length, which stand after the first byte
    length: int = 0  # or this length, out of the first byte
    each: int = 0  # items that the length counts: 1 in a list, 2 in a map, 0 where it counts bytes
    weight: int = 0  # items that the token counts for, beyond one


def _heads() -> dict[int, _Head]:
    """Every token that is not of a fixed length or weighs more than one."""
    more = WEIGHT - 1
    heads = {0x80 + n: _Head(1, 0, n, 2, more) for n in range(16)}
    heads |= {0x90 + n: _Head(1, 0, n, 1, more) for n in range(16)}
    for power, width in enumerate((1, 2, 4)):
        heads[0xC4 + power] = heads[0xD9 + power] = _Head(1 + width, width)
        heads[0xC7 + power] = _Head(2 + width, width, weight=more)
    for power, width in enumerate((2, 4)):
        heads[0xDC + power] = _Head(1 + width, width, 0, 1, more)
        heads[0xDE + power] = _Head(1 + width, width, 0, 2, more)
    return heads | {0xD4 + n: _Head(2 + (1 << n), weight=more) for n in range(5)}


def _jumps() -> bytes:
    """The lengths of all other tokens, by their first byte; 0 for those in `_HEADS`."""
    numbers = bytes((5, 9, 2, 3, 5, 9, 2, 3, 5, 9))
    lengths = b"\1" * 0xA0 + bytes(range(1, 33)) + b"\1" * 10 + numbers + b"\1" * 44
    return bytes(0 if head in _HEADS else length for head, length in enumerate(lengths))


_HEADS = _heads()
_JUMPS = _jumps()


def _scan(data: bytes, limits: Limits) -> None:
    """Refuse bytes for their items and depth, by their tokens alone, before anything is built."""
    at, items, left, above = 0, 1, 1, list[int]()
    try:
        while True:
            while left:
                left -= 1
                head = data[at]
                jump = _JUMPS[head]
                if jump:
                    at += jump
                    continue
                jump, width, length, each, weight = _HEADS[head]
                if width:
                    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
                at += jump
                items += weight + length * each
                if items > limits.items:
                    raise _too_many(items, limits)
                if each:
                    above.append(left)
                    left = length * each
                    if len(above) > limits.depth:
                        raise ValueError(_TOO_DEEP)
                else:
                    at += length
            if not above:
                break
            left = above.pop()
    except IndexError:
        raise ValueError("cut short") from None
    if at != len(data):
        raise ValueError(f"its parts take {at} bytes")


def _complaint(value: object, key: str, error: Exception) -> str:
    """What is wrong with a value that cannot be packed; its place is looked for only now."""
    if isinstance(error, _TooMuch):
        return f"cannot pack {_kind(value)} of {error}"
    return next(_faults(value, key, VALUE_LIMITS.depth), f"cannot pack {_kind(value)}; {error}")


def _faults(value: Any, path: str, room: int) -> Iterator[str]:
    subject = _kind(value) + (f" at {path}" if room < VALUE_LIMITS.depth else "")
    if not _is_box(value):
        try:
            _check_leaf(value)
            _packer().pack(value)
        except _FAILURES as error:
            yield f"cannot pack {subject}; {_reason(value, error)}"
    elif not room:
        deepest = VALUE_LIMITS.depth
        yield f"cannot pack {subject}; lists and dicts nest at most {deepest} deep, without cycles"
    else:
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and (wrong := _wrong_key(key)):
                yield f"cannot pack {subject}; {wrong}"
            yield from _faults(child, f"{path}[{reprlib.repr(key)}]", room - 1)


def _wrong_key(key: object) -> str | None:
    if type(key) is not str:
        return f"keys are str, got {type(key).__name__} {reprlib.repr(key)}"
    try:
        key.encode()
    except UnicodeEncodeError:
        return f"its key {reprlib.repr(key)} holds half a surrogate pair"
    return None


def _kind(value: object) -> str:
    dtype = getattr(value, "dtype", None)
    name = type(value).__name__
    return f"{name} of dtype {dtype}" if isinstance(dtype, np.dtype) else name


def _reason(leaf: object, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it holds half a surrogate pair, which UTF-8 cannot; use bytes"
    if type(leaf) is int:
        return "ints have 64 bits; use float(...) or str(...)"
    return str(error)


_ADVICE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "use its .value"),
    (dt.datetime, "use a plain datetime with a time zone, as datetime.now(UTC) gives"),
    ((dt.date, dt.time), "use its .isoformat()"),
    (dt.timedelta, "use its .total_seconds()"),
    (msgpack.Timestamp, "use its .to_datetime()"),
    ((set, frozenset), "use a list, sorted where the order matters"),
    (complex, "use np.complex128(...)"),
    (os.PathLike, "use str(...)"),
    (dict, "use dict(...)"),
    ((list, tuple), "use list(...)"),
    ((bytes, bytearray, memoryview), "use bytes(...)"),
    (str, "use str(...)"),
    (int, "use int(...)"),
    (float, "use float(...)"),
)


def _advice(value: object) -> str:
    return next(
        (advice for types, advice in _ADVICE if isinstance(value, types)),
        "snapshots carry None, bool, int, float, str, bytes, list, tuple, dict, datetime, numpy's "
        "arrays and scalars; keep anything else in the callback itself",
    )
