"""What to say of a value that no snapshot carries."""

import datetime as dt
import enum
import os
import reprlib

import msgpack
import numpy as np


def wrong_key(key: object) -> str | None:
    """What is wrong with a dict's key, if anything."""
    if type(key) is not str:
        return f"keys are str, got {type(key).__name__} {reprlib.repr(key)}"
    try:
        key.encode()
    except UnicodeEncodeError:
        return f"its key {reprlib.repr(key)} holds half a surrogate pair"
    return None


def kind_of(value: object) -> str:
    """The name of its type, with the dtype of an array."""
    dtype = getattr(value, "dtype", None)
    name = type(value).__name__
    return f"{name} of dtype {dtype}" if isinstance(dtype, np.dtype) else name


def reason(leaf: object, error: Exception) -> str:
    """Why the packer does not take it, in words that say what to do."""
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


def advice(value: object) -> str:
    """What to use in its place."""
    return next(
        (advice for types, advice in _ADVICE if isinstance(value, types)),
        "snapshots carry None, bool, int, float, str, bytes, list, tuple, dict, datetime, numpy's "
        "arrays and scalars; keep anything else in the callback itself",
    )
