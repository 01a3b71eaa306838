"""Snapshots as msgpack bytes: a closed set of types both ways, with limits (C2, no pickle).

Beside msgpack's own types these ext types exist; nothing else is packed or read:

code | value
-----+---------------------------------------------------------------------------------------------
  -1 | datetime with a time zone (msgpack's own timestamp; comes back in UTC)
   1 | ndarray: dtype code (1 byte), dimensions (1 byte), each as uint32, data; little-endian, C order
   2 | numpy scalar: dtype code (1 byte), data
   3 | `Reference`: msgpack array of its four strings

Tuples come back as lists. Lists and dicts come back read-only.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import ml_dtypes
import msgpack
import msgspec
import numpy as np

from .errors import SnapshotError
from .frozen import FrozenDict, FrozenList
from .tensor import Tensor

MAX_SNAPSHOT = 2**20  # bytes
MAX_DEPTH = 16  # containers within containers
MAX_ITEMS = 10_000  # values, keys and containers in all
SMALL = 4096  # bytes that cannot hold enough items to matter

ARRAY, SCALAR, REFERENCE = 1, 2, 3
DTYPES = tuple(
    np.dtype(kind)
    for kind in (
        *("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8"),
        *("<f2", "<f4", "<f8", "<c8", "<c16", ml_dtypes.bfloat16),
    )
)
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for a live thing or a large array that a snapshot does not hold.

    `kind` says what it is ("network", "array", ...), `type` its class, `summary` what a person
    wants to know of it (shape, dtype, length), `id` names it within the run.
    """

    kind: str
    type: str = ""
    summary: str = ""
    id: str = ""


def pack(value: object, key: str = "value") -> bytes:
    """`value` as msgpack bytes that `unpack` takes.

    Raises:
        SnapshotError: naming `key`, the place within the value, and the type.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_encode, strict_types=True, datetime=True)
        if isinstance(value, (dict, list, tuple)) or len(packed) > MAX_SNAPSHOT:
            unpack(packed)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        where, what, why = _offender(value, key, error)
        raise SnapshotError(
            f"cb_params key {key!r}: cannot pack {what} at {where}: {why}; use numbers, strings, "
            f"arrays, or lists and dicts of them"
        ) from error
    return packed


def join(packed: Mapping[str, bytes]) -> bytes:
    """The map of `packed` values, byte for byte what `pack` makes of the unpacked ones.

    Raises:
        SnapshotError: when it is larger than a snapshot may be.
    """
    parts = [_map_header(len(packed))]
    for key, value in packed.items():
        parts.append(_packed_key(key))
        parts.append(value)
    joined = b"".join(parts)
    if len(joined) > MAX_SNAPSHOT:
        raise SnapshotError(f"a snapshot of {len(joined)} bytes, at most {MAX_SNAPSHOT} fit")
    return joined


def unpack(data: bytes) -> Any:
    """The value in `data`; takes untrusted bytes.

    Raises:
        SnapshotError: for anything that `pack` would not have written, before it is built where
            building it would cost much.
    """
    if len(data) > MAX_SNAPSHOT:
        raise SnapshotError(f"a snapshot of {len(data)} bytes, at most {MAX_SNAPSHOT} are read")
    try:
        if len(data) > SMALL:
            _scan(data)
        value = msgpack.unpackb(
            data,
            timestamp=3,
            strict_map_key=True,
            ext_hook=_decode,
            list_hook=FrozenList,
            object_pairs_hook=_frozen_dict,
        )
    except SnapshotError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise SnapshotError(f"malformed snapshot: {type(error).__name__}: {error}") from error
    if isinstance(value, (FrozenDict, FrozenList)):
        _check_depth(value)
    return value


@lru_cache(maxsize=4096)
def _packed_key(key: str) -> bytes:
    packed: bytes = msgpack.packb(key)
    return packed


@lru_cache(maxsize=256)
def _map_header(length: int) -> bytes:
    return bytes(msgpack.Packer().pack_map_header(length))


def _encode(value: Any) -> Any:
    """What msgpack does not know by itself; the exact types come first."""
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(ARRAY, _array_payload(value))
    if isinstance(value, np.generic):
        array = np.asarray(value)
        code = _dtype_code(array.dtype)
        return msgpack.ExtType(SCALAR, bytes((code,)) + _little(array).tobytes())
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, FrozenDict):
        return dict(value)
    if isinstance(value, Reference):
        return msgpack.ExtType(REFERENCE, msgpack.packb(list(msgspec.structs.astuple(value))))
    if isinstance(value, datetime):
        raise TypeError("a datetime without a time zone names no moment")
    if all(hasattr(value, name) for name in ("__array__", "dtype", "shape")):
        return msgpack.ExtType(ARRAY, _array_payload(np.asarray(value)))
    raise TypeError("msgpack has no such type")


def _little(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _dtype_code(dtype: np.dtype[Any]) -> int:
    code = CODES.get(dtype)
    if code is None:
        code = CODES.get(dtype.newbyteorder("<") if dtype.kind in "biufc" else dtype)
    if code is None:
        raise TypeError(f"arrays of dtype {dtype} cannot travel")
    return code


def _array_payload(array: np.ndarray[Any, Any]) -> bytes:
    shape = array.shape
    header = bytes((_dtype_code(array.dtype), len(shape)))
    if shape:
        header += np.asarray(shape, "<u4").tobytes()
    return header + _little(array).tobytes()


def _decode(code: int, payload: bytes) -> Any:
    if code == ARRAY:
        return _read_array(payload)
    if code == SCALAR:
        dtype = DTYPES[payload[0]] if payload and payload[0] < len(DTYPES) else None
        if dtype is None or len(payload) != 1 + dtype.itemsize:
            raise SnapshotError(f"malformed scalar of {len(payload)} bytes")
        return np.frombuffer(payload[1:], dtype)[0]
    if code == REFERENCE:
        fields = msgpack.unpackb(payload, max_array_len=4, max_ext_len=0, max_map_len=0)
        if type(fields) is not list or [type(one) for one in fields] != [str] * 4:
            raise SnapshotError("malformed reference")
        return Reference(kind=fields[0], type=fields[1], summary=fields[2], id=fields[3])
    raise SnapshotError(f"unknown ext type {code}")


def _read_array(payload: bytes) -> Tensor:
    if len(payload) < 2 or payload[0] >= len(DTYPES) or payload[1] > 32:
        raise SnapshotError("malformed array header")
    dtype, end = DTYPES[payload[0]], 2 + 4 * payload[1]
    if len(payload) < end:
        raise SnapshotError("malformed array shape")
    shape = [int.from_bytes(payload[at : at + 4], "little") for at in range(2, end, 4)]
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size != len(payload) - end:
        raise SnapshotError(f"an array of shape {shape} needs {size} bytes, got another number")
    return np.frombuffer(payload[end:], dtype).reshape(shape).view(Tensor)


def _frozen_dict(pairs: Iterable[tuple[Any, Any]]) -> FrozenDict:
    pairs = list(pairs)
    value = FrozenDict(pairs)
    if len(value) != len(pairs):
        raise SnapshotError("a map names a key twice")
    for key in value:
        if type(key) is not str:
            raise SnapshotError(f"a map key must be str, got {type(key).__name__}")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            children = one.values() if type(one) is FrozenDict else one
            inner += [child for child in children if type(child) in (FrozenDict, FrozenList)]
        if not inner:
            return
        level = inner
    raise SnapshotError(f"containers nested deeper than {MAX_DEPTH}")


# Of the first bytes 0xc0 to 0xdf: how many bytes of length follow, fixed bytes after them, and what
# the length counts.
_FORMS: dict[int, tuple[int, int, str]] = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), (0, 0, "")),
    **{0xC4 + k: (1 << k, 0, "bytes") for k in range(3)},
    **{0xC7 + k: (1 << k, 1, "bytes") for k in range(3)},
    0xCA: (0, 4, ""),
    0xCB: (0, 8, ""),
    **{0xCC + k: (0, 1 << k, "") for k in range(4)},
    **{0xD0 + k: (0, 1 << k, "") for k in range(4)},
    **{0xD4 + k: (0, 1 + (1 << k), "") for k in range(5)},
    **{0xD9 + k: (1 << k, 0, "bytes") for k in range(3)},
    0xDC: (2, 0, "items"),
    0xDD: (4, 0, "items"),
    0xDE: (2, 0, "pairs"),
    0xDF: (4, 0, "pairs"),
}


def _token(data: bytes, at: int) -> tuple[int, int]:
    """The token at `at`: where the next one begins, and how many values it contains."""
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1, 0
    if first < 0x90:
        return at + 1, 2 * (first & 15)
    if first < 0xA0:
        return at + 1, first & 15
    if first < 0xC0:
        return at + 1 + (first & 31), 0
    if first not in _FORMS:
        raise SnapshotError(f"malformed snapshot: byte 0x{first:02x} at {at}")
    prefix, fixed, counts = _FORMS[first]
    length = int.from_bytes(data[at + 1 : at + 1 + prefix], "big")
    at += 1 + prefix + fixed
    if counts == "bytes":
        return at + length, 0
    return at, length * (2 if counts == "pairs" else 1)


def _scan(data: bytes) -> None:
    """Count what `data` would build, and refuse it before it is built."""
    at, items, end = 0, 0, len(data)
    open_containers = [1]
    while open_containers:
        if at >= end:
            raise SnapshotError("malformed snapshot: it ends early")
        at, inside = _token(data, at)
        items += 1
        open_containers[-1] -= 1
        if inside:
            open_containers.append(inside)
        while open_containers and not open_containers[-1]:
            open_containers.pop()
        if items > MAX_ITEMS:
            raise SnapshotError(f"more than {MAX_ITEMS} values in one snapshot")
        if len(open_containers) > MAX_DEPTH + 1:
            raise SnapshotError(f"containers nested deeper than {MAX_DEPTH}")


def _offender(value: Any, path: str, error: Exception) -> tuple[str, str, str]:
    """Where in `value` packing fails, the type there, and why."""
    children: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return path, f"a {type(value).__name__}", f"its key {key!r} is no str"
        children = ((f"{path}[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        children = ((f"{path}[{place}]", child) for place, child in enumerate(value))
    if path.count("[") <= MAX_DEPTH:
        for inner, child in children:
            try:
                msgpack.packb(child, default=_encode, strict_types=True, datetime=True)
                if isinstance(child, (dict, list, tuple)):
                    unpack(msgpack.packb(child, default=_encode, strict_types=True, datetime=True))
            except (ValueError, TypeError, OverflowError, RecursionError) as reason:
                return _offender(child, inner, reason)
    return path, type(value).__name__, str(error)
