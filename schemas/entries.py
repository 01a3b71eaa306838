"""The entries of snapshots as bytes, so that of a series only what changes is decoded."""

from .codec import LIMITS, entry, unpack
from .errors import SnapshotError
from .limits import HEADS, JUMPS

Packed = dict[str, bytes]


def split(snapshot: bytes) -> Packed:
    """The packed values of a snapshot by their keys; `join` makes it again of their entries.

    The values are not looked into, `unpack` does that.

    Raises:
        SnapshotError: it is no map of such values.
    """
    try:
        if len(snapshot) > LIMITS.size:
            raise SnapshotError(f"a snapshot has at most {LIMITS.size} bytes, got {len(snapshot)}")
        found: Packed = {}
        count, at = _header(snapshot)
        while at < len(snapshot):
            begin = _end_of(snapshot, at)
            end = _end_of(snapshot, begin)
            key = unpack(snapshot[at:begin])
            if not isinstance(key, str) or key in found or end > len(snapshot):
                raise SnapshotError(f"expected a new key and its value at byte {at}, got {key!r}")
            found[key], at = snapshot[begin:end], end
    except IndexError:
        raise SnapshotError(f"these {len(snapshot)} bytes are cut short") from None
    if len(found) != count:
        raise SnapshotError(f"a snapshot says it has {count} entries, got {len(found)}")
    return found


class Series:
    """Snapshots one after another, and what is new in each.

    Attributes:
        values: packed, by key, of the newest.
    """

    def __init__(self) -> None:
        self.values: Packed = {}
        self._newest = b""
        self._moved: set[str] = set()  # keys that have changed their value
        self._stable = b"\0"  # what stands before the first of these; no snapshot begins so
        self._tail: dict[str, bytes] = {}  # the entries after that
        self._starts: dict[str, bytes] = {}

    def advance(self, snapshot: bytes) -> dict[str, bytes | None]:
        """The next one: its packed values that differ, None for those that are gone.

        Raises:
            SnapshotError: it is none.
        """
        if snapshot == self._newest:
            return {}
        found = self._compare(snapshot)
        if found is None:
            return self._anew(snapshot)
        self._newest = snapshot
        self.values.update(found)
        return dict(found)

    def _compare(self, data: bytes) -> Packed | None:
        """The values that differ, if all keys stand where they stood."""
        if not data.startswith(self._stable):
            return None
        at, tail = len(self._stable), self._tail
        found: Packed = {}
        for key, chunk in tail.items():
            if data.startswith(chunk, at):
                at += len(chunk)
                continue
            start = self._starts[key]
            if not data.startswith(start, at):
                return None
            try:
                end = _end_of(data, at + len(start))
            except IndexError:
                return None
            found[key] = data[at + len(start) : end]
            at = end
        if at != len(data):
            return None
        for key, packed in found.items():
            tail[key] = self._starts[key] + packed
        return found

    def _anew(self, data: bytes) -> dict[str, bytes | None]:
        before, self.values = self.values, split(data)
        found: dict[str, bytes | None] = {
            key: packed for key, packed in self.values.items() if before.get(key) != packed
        }
        self._newest = data
        self._starts = {key: entry(key, b"") for key in self.values}
        chunks = {key: self._starts[key] + packed for key, packed in self.values.items()}
        self._moved |= found.keys() & before.keys()
        keys = list(chunks)
        first = next((place for place, key in enumerate(keys) if key in self._moved), len(keys))
        self._tail = {key: chunks[key] for key in keys[first:]}
        self._stable = data[: len(data) - sum(map(len, self._tail.values()))]
        return found | {key: None for key in before.keys() - self.values.keys()}


def _header(data: bytes) -> tuple[int, int]:
    """How many entries a map has, and where the first one stands."""
    head = HEADS.get(data[0])
    if head is None or head.each != 2:
        raise SnapshotError("a snapshot is a map, got something else")
    jump, width, length, _, _ = head
    return int.from_bytes(data[1 : 1 + width], "big") if width else length, jump


def _end_of(data: bytes, at: int) -> int:
    """Where the value ends that begins at `at`."""
    left = 1
    while left:
        left -= 1
        head = data[at]
        jump = JUMPS[head]
        if jump:
            at += jump
            continue
        jump, width, length, each, _ = HEADS[head]
        if width:
            length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
        at += jump
        if each:
            left += length * each
        else:
            at += length
    return at
