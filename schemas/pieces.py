"""A network's parameters on their way to a remote participant: packed, in pieces, digest-checked."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from .codec import TENSOR
from .errors import FrameError
from .frames import Chunk
from .tensor import Tensor, pack_tensor, unpack_tensor

CHUNK = 256 << 10  # bytes of a piece


def pack_arrays(tree: Mapping[str, Any]) -> bytes:
    """Nested dicts of numpy arrays as msgpack bytes, each array as in a snapshot.

    Raises:
        TypeError: an array has a dtype that a snapshot does not have.
    """

    def tensor(array: Any) -> msgpack.ExtType:
        return msgpack.ExtType(TENSOR, pack_tensor(array))

    packed: bytes = msgpack.packb(tree, default=tensor)
    return packed


def unpack_arrays(data: bytes) -> dict[str, Any]:
    """What `pack_arrays` was given; the arrays are read-only views of `data`.

    Raises:
        FrameError: for other bytes.
    """
    try:
        tree = msgpack.unpackb(data, ext_hook=_tensor)
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"these {len(data)} bytes are no network: {error}") from error
    if not isinstance(tree, dict):
        raise FrameError(f"a network is a map of arrays, got {type(tree).__name__}")
    return tree


def chunks(number: int, data: bytes) -> list[Chunk]:
    """`data` in pieces, the answer to fetch `number`; one empty piece where there is none."""
    digest = hashlib.sha256(data).hexdigest()
    places = range(0, max(len(data), 1), CHUNK)
    return [
        Chunk(number=number, at=at, size=len(data), digest=digest, data=data[at : at + CHUNK])
        for at in places
    ]


def assembled(pieces: Sequence[Chunk]) -> bytes:
    """What `chunks` was given.

    Raises:
        FrameError: a piece is missing, out of its place or damaged.
    """
    data = b"".join(piece.data for piece in pieces)
    digest = hashlib.sha256(data).hexdigest()
    if not pieces or any(piece.digest != digest for piece in pieces):
        raise FrameError(f"{len(pieces)} pieces of {len(data)} bytes do not have their digest")
    return data


def _tensor(code: int, data: bytes) -> Tensor:
    if code != TENSOR:
        raise ValueError(f"ext {code} is no array")
    return unpack_tensor(data)
