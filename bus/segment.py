"""A recording's files: MCAP segments of msgpack messages, written as a run goes on (C9).

One channel per hook, and `decision`, `gap` and `log`. An event's message is a msgpack map whose
keys, order and widths never change, so that the snapshot at its end is carried as it is. What its
acks said beyond ok stands in a `decision` message right before it: a torn file then holds both or
neither.
"""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import IO, Any

import msgspec
import numpy as np

from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Ack, Committed, Decision, Event, Gap
from railbus.schemas.hooks import Hook

from .about import About
from .container import Container
from .scan import MAX_CHUNK

FORMAT = "1"
ABOUT = "railbus"  # the metadata record that says what the run is
INDEX = "railbus-index"  # the attachment that says where in the file which event is
COLUMNS = ("offset", "seq", "time_ns", "step", "epoch")  # of the index: each chunk's first event
CHUNK_EVENTS = 64
CHUNK_BYTES = 1 << 20
SLACK = 1 << 20  # bytes that a chunk has room for beside its messages
SUM = "crc32"  # a note's key for its checksum
MOST = 2**63 - 1  # of any number of an event: what an index and a database hold
_KEYS = (
    b"\x87\xa3seq\xcf",
    b"\xa7time_ns\xcf",
    b"\xa7wall_ns\xcf",
    b"\xa4step\xcf",
    b"\xa5epoch\xcf",
    b"\xa5acted",
    b"\xa9cb_params",
)
_HEAD = struct.Struct(">6sQ9sQ9sQ6sQ7sQ6sB10s")
_FALSE, _TRUE = 0xC2, 0xC3


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What the acks of one event amount to, and those that said more than ok."""

    seq: int
    hook: Hook
    decision: Decision
    acks: tuple[Ack, ...]


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of Railbus' own log, written before event `seq` was."""

    seq: int
    wall_ns: int
    level: str
    logger: str
    message: str


class Begun(msgspec.Struct, frozen=True):
    """An event whose decision, if it `acted`, has to be found."""

    event: Event
    acted: bool
    step: int
    epoch: int


def pack_event(entry: Committed) -> bytes:
    """An event's message."""
    event = entry.event
    acted = _TRUE if acts(entry) else _FALSE
    seq, time_ns, wall_ns, step, epoch, key, params = _KEYS
    head = _HEAD.pack(
        *(seq, event.seq, time_ns, event.time_ns, wall_ns, event.wall_ns),
        *(step, entry.step, epoch, entry.epoch, key, acted, params),
    )
    return head + event.snapshot


def unpack_event(data: bytes, about: About, hook: Hook) -> Begun:
    """What `pack_event` gave.

    Raises:
        RecordingError: it is something else.
    """
    try:
        k1, seq, k2, time_ns, k3, wall_ns, k4, step, k5, epoch, k6, acted, k7 = _HEAD.unpack_from(
            data
        )
    except struct.error as error:
        raise RecordingError("an event's message is too short") from error
    if (k1, k2, k3, k4, k5, k6, k7) != _KEYS or acted not in (_FALSE, _TRUE):
        raise RecordingError("an event's message does not have the keys of this format")
    if max(seq, time_ns, wall_ns, step, epoch) > MOST:
        raise RecordingError("an event's message holds a number that no event has")
    event = Event(
        run_id=about.run_id,
        incarnation=about.incarnation,
        seq=seq,
        hook=hook,
        time_ns=time_ns,
        wall_ns=wall_ns,
        snapshot=data[_HEAD.size :],
    )
    return Begun(event, acted == _TRUE, step, epoch)


def acts(entry: Committed) -> bool:
    """Whether its acks said more than ok, or left a participant behind."""
    decision = entry.decision
    return bool(entry.acks or decision.stops or decision.patches or decision.detached)


def checksum(name: str, values: Mapping[str, str]) -> str:
    """What a note of the run is checked by."""
    return str(zlib.crc32(json.dumps([name, sorted(values.items())]).encode()))


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas of the messages, by kind."""
    number, params = {"type": "integer", "minimum": 0}, {"type": "object"}
    names = ("seq", "time_ns", "wall_ns", "step", "epoch")
    event = {name: number for name in names} | {"acted": {"type": "boolean"}, "cb_params": params}
    return {
        "event": {"type": "object", "properties": event, "required": list(event)},
        "decision": msgspec.json.schema(Acted),
        "gap": msgspec.json.schema(Gap),
        "log": msgspec.json.schema(LogLine),
    }


class SegmentWriter:
    """Writes one segment; what it was given is in the file after each `flush`.

    Args:
        file: new, empty and seekable.
        notes: what else is known of the run, as metadata records: name to a dict of strings.
    """

    def __init__(
        self, file: IO[bytes], about: About, notes: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.pending = 0
        self._file, self._bytes = file, 0
        self._index: list[tuple[int, ...]] = []
        self._first: tuple[int, ...] = ()
        self._step = self._last_ns = 0
        self._out = Container(file, "railbus", f"railbus {version('railbus')}")
        text = msgspec.json.encode(about).decode()
        head = {"format": FORMAT, "about": text, "crc32": str(zlib.crc32(text.encode()))}
        self._out.metadata(ABOUT, head)
        for name, values in notes.items():
            self._out.metadata(name, {**values, SUM: checksum(name, values)})
        self._channels = self._register()
        file.flush()

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return self._out.size

    def write(self, item: Committed | Gap | LogLine) -> None:
        """The next committed event, or what stands between two of them.

        Raises:
            OSError: the file cannot take it.
            RecordingError: it is larger than what is read back.
        """
        if isinstance(item, Gap):
            self._add("gap", self._last_ns, msgspec.msgpack.encode(item))
            self.flush()
        elif isinstance(item, LogLine):
            self._add("log", self._last_ns or item.wall_ns, msgspec.msgpack.encode(item))
            self.pending += 1
            if self._bytes >= CHUNK_BYTES:
                self.flush()
        elif isinstance(item, Committed):
            self._write(item)

    def flush(self, sync: bool = False) -> None:
        """Close the present chunk and hand it to the system; `sync`: to the disk."""
        if self._first:
            self._index.append((self._out.size, *self._first))
        self._first, self.pending, self._bytes = (), 0, 0
        self._out.flush()
        if sync:
            os.fdatasync(self._file.fileno())

    def seal(self) -> None:
        """Write the index and the summary: nothing follows."""
        self.flush()
        rows = np.array(self._index, "<i8").reshape(-1, len(COLUMNS))
        self._out.finish(INDEX, rows.tobytes())
        os.fsync(self._file.fileno())

    def _write(self, entry: Committed) -> None:
        event = entry.event
        if event.hook.mode == "train":
            self._step = entry.step
        self._first = self._first or (event.seq, event.time_ns, self._step, entry.epoch)
        if acts(entry):
            acted = Acted(seq=event.seq, hook=event.hook, decision=entry.decision, acks=entry.acks)
            self._add("decision", event.wall_ns, msgspec.msgpack.encode(acted))
        self._add(event.hook.value, event.wall_ns, pack_event(entry))
        self.pending += 1
        if self.pending >= CHUNK_EVENTS or self._bytes >= CHUNK_BYTES:
            self.flush()

    def _add(self, topic: str, wall_ns: int, data: bytes) -> None:
        self._last_ns = log_ns = max(self._last_ns, wall_ns)
        self._bytes += len(data)
        if self._bytes > MAX_CHUNK - SLACK:
            raise RecordingError(
                f"a message of {len(data)} bytes on {topic!r} is too large for a recording: at "
                f"most {MAX_CHUNK - SLACK} are read at once"
            )
        self._out.message(self._channels[topic], log_ns, wall_ns, data)

    def _register(self) -> dict[str, int]:
        known = {
            kind: self._out.schema(f"railbus.{kind}", "jsonschema", json.dumps(schema).encode())
            for kind, schema in schemas().items()
        }
        topics = {hook.value: "event" for hook in Hook}
        topics |= {kind: kind for kind in ("decision", "gap", "log")}
        return {
            topic: self._out.channel(topic, "msgpack", known[kind])
            for topic, kind in topics.items()
        }
