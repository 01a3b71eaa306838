"""What a snapshot may cost, and bytes looked through before anything is built from them."""

from typing import NamedTuple

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot may cost whoever reads it.

    `size` is in bytes. `depth` counts lists and dicts inside one another, the outermost included.
    `items` counts keys and values on all levels; each list, dict and ext value counts `WEIGHT`.
    At the defaults any bytes are read or refused within 10 ms and 8 MiB of memory.
    """

    size: int = 1 << 20
    depth: int = 16
    items: int = 10_000


WEIGHT = 4
LIMITS = Limits()
# One level less than a snapshot: a value stands in the snapshot's own map.
VALUE_LIMITS = Limits(depth=LIMITS.depth - 1)
MAX_SNAPSHOT = LIMITS.size
TOO_DEEP = "lists and dicts are nested too deep"


class TooMuch(ValueError):
    """Raised for a value of which no single part is to blame."""


def check_size(size: int) -> None:
    """Refuse so many bytes.

    Raises:
        TooMuch: they do not fit into a snapshot.
    """
    if size > MAX_SNAPSHOT:
        raise TooMuch(
            f"{size} bytes, at most {MAX_SNAPSHOT} fit into a snapshot; keep large data in the "
            "callback or in a file"
        )


def too_many(items: int, limits: Limits) -> TooMuch:
    """The error for so many items."""
    return TooMuch(
        f"{items} items or more, at most {limits.items} fit into a snapshot; use a numpy array, or "
        "keep them in the callback or in a file"
    )


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
    """The lengths of all other tokens, by their first byte; 0 for those in `HEADS`."""
    numbers = bytes((5, 9, 2, 3, 5, 9, 2, 3, 5, 9))
    lengths = b"\1" * 0xA0 + bytes(range(1, 33)) + b"\1" * 10 + numbers + b"\1" * 44
    return bytes(0 if head in HEADS else length for head, length in enumerate(lengths))


HEADS = _heads()
JUMPS = _jumps()


def scan(data: bytes, limits: Limits) -> None:
    """Refuse bytes for their items and depth, by their tokens alone, before anything is built.

    Raises:
        ValueError: they have too many or too deep, or are cut short.
    """
    at, items, left, above = 0, 1, 1, list[int]()
    try:
        while True:
            while left:
                left -= 1
                head = data[at]
                jump = JUMPS[head]
                if jump:
                    at += jump
                    continue
                jump, width, length, each, weight = HEADS[head]
                if width:
                    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
                at += jump
                items += weight + length * each
                if items > limits.items:
                    raise too_many(items, limits)
                if each:
                    above.append(left)
                    left = length * each
                    if len(above) > limits.depth:
                        raise ValueError(TOO_DEEP)
                else:
                    at += length
            if not above:
                break
            left = above.pop()
    except IndexError:
        raise ValueError("cut short") from None
    if at != len(data):
        raise ValueError(f"its parts take {at} bytes")
