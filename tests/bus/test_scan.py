"""Recordings that were made to do harm: a typed error, soon, and little memory for it."""

import struct
import tracemalloc
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import Attachment, Channel, Chunk, Metadata, SummaryOffset

from railbus.bus import Recording, recover
from railbus.bus.reader import Segment
from railbus.bus.segment import COLUMNS, INDEX, pack_event
from railbus.schemas import Hook
from railbus.schemas.errors import RailbusError, RecordingError
from railbus.schemas.events import Committed

from .recorded import ABOUT, at, entry, sample, write

GIB = 1 << 30
ROOM = 80 << 20  # bytes that reading may take: a chunk, packed and unpacked, and what zstd needs


def head(folder: Path) -> bytes:
    """A file's beginning, up to its first chunk."""
    data = Recording(write(folder / "head", sample())).files[0].read_bytes()
    at = 8
    while data[at] in (Opcode.HEADER, Opcode.METADATA):
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    return data[:at]


def record(what) -> bytes:
    builder = RecordBuilder()
    what.write(builder)
    return bytes(builder.end())


def chunk(content: bytes, said: int | None = None, packed: bytes | None = None) -> bytes:
    return record(
        Chunk(
            compression="zstd",
            data=zstandard.compress(content) if packed is None else packed,
            message_start_time=0,
            message_end_time=0,
            uncompressed_crc=zlib.crc32(content),
            uncompressed_size=len(content) if said is None else said,
        )
    )


def message(topic: str, data: bytes) -> bytes:
    """A channel and one message on it."""
    channel = record(Channel(id=1, topic=topic, message_encoding="", metadata={}, schema_id=0))
    body = struct.pack("<HIQQ", 1, 0, 0, 0) + data
    return channel + struct.pack("<BQ", Opcode.MESSAGE, len(body)) + body


def zeros() -> bytes:
    """One GiB of zeros, packed."""
    packer = zstandard.ZstdCompressor().compressobj()
    pieces = [packer.compress(bytes(1 << 24)) for _ in range(64)]
    return b"".join([*pieces, packer.flush()])


def attached(rows: list[tuple[int, ...]]) -> bytes:
    data, media = np.array(rows, "<i8").tobytes(), "application/octet-stream"
    return record(Attachment(create_time=0, log_time=0, name=INDEX, media_type=media, data=data))


DEEP = b"\x91" * 200_000
BOMBS = {
    "a chunk that says little and has 1 GiB": lambda: chunk(b"x" * 50, packed=zeros()),
    "a chunk that says 1 GiB": lambda: chunk(b"x" * 50, said=GIB, packed=zeros()),
    "a chunk of 2**63 bytes": lambda: struct.pack("<BQ", Opcode.CHUNK, 1 << 63),
    "a chunk packed by another": lambda: chunk(b"x").replace(b"zstd", b"lz4\0"),
    "metadata of 2**63 bytes": lambda: struct.pack("<BQ", Opcode.METADATA, 1 << 63),
    "large metadata": lambda: record(Metadata(name="x", metadata={"k": "v" * (5 << 20)})),
    "a message of 2**63 bytes": lambda: chunk(struct.pack("<BQ", Opcode.MESSAGE, 1 << 63)),
    "a channel of 2 MiB": lambda: chunk(message("x" * (2 << 20), b"")),
    "an unknown channel": lambda: chunk(message("on_step", b"")),
    "a message of no channel": lambda: chunk(message("on_train_end", b"")[40:]),
    "a deep decision": lambda: chunk(message("decision", DEEP)),
    "a decision of 2**32 acks": lambda: chunk(
        message("decision", b"\x81\xa4acks\xdd" + b"\xff" * 4)
    ),
    "a long map": lambda: chunk(message("gap", b"\xdf" + b"\xff" * 4)),
    "a long string": lambda: chunk(message("log", b"\x81\xa5level\xdb" + b"\xff" * 4)),
    "an event of another format": lambda: chunk(message("on_train_end", b"\x87" * 200)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_a_typed_error_before_it_takes_memory(bomb, tmp_path):
    path = tmp_path / "000-00000000.mcap"
    path.write_bytes(head(tmp_path) + BOMBS[bomb]())

    recording, most = measured(lambda: Recording(path))

    assert most < ROOM
    reads = [lambda: recover(path)]
    if recording is not None:
        reads = [lambda: list(recording), recording.verify, *reads]
    for read in reads:
        _, most = measured(read)
        assert most < ROOM


def measured(work):
    """What `work` gives, unless that is a typed error, and the bytes that Python took for it."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    except RailbusError:
        return None, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", [one for one in BOMBS if "large metadata" not in one])
def test_reading_a_bomb_ends_with_a_recording_error(bomb, tmp_path):
    path = tmp_path / "000-00000000.mcap"
    path.write_bytes(head(tmp_path) + BOMBS[bomb]())

    with pytest.raises(RecordingError):
        list(Recording(path))


def with_index(folder: Path, rows) -> Recording:
    """A recording whose index was replaced, with right checksums of what matters to a reader."""
    recording = Recording(write(folder, sample()))
    path = recording.files[0]
    data = path.read_bytes()
    at = data.index(INDEX.encode()) - 9 - 20
    at = next(k for k in range(at - 20, at + 30) if data[k] == Opcode.ATTACHMENT)
    size = 9 + struct.unpack_from("<Q", data, at + 1)[0]
    new = attached(rows)
    assert len(new) == size, "as many rows as before keep every offset right"
    path.write_bytes(data[:at] + new + data[at + size :])
    return recording


@pytest.mark.parametrize(
    "row",
    [
        (-5, 0, 0, 0, 0),
        (1 << 62, 0, 0, 0, 0),
        (3, 0, 0, 0, 0),
        (0, -(1 << 63), 0, 0, 0),
        (500, 7, 0, 0, 0),
    ],
)
def test_an_index_that_lies_gives_a_typed_error_or_what_is_there(row, tmp_path):
    count = len(_index(tmp_path / "first"))
    recording = with_index(tmp_path / "second", [row] * count)

    assert len(COLUMNS) == len(row)
    for name in ("seq", "step", "epoch", "time"):
        try:
            found = list(recording.entries(**at(name, 3)))
        except RecordingError:
            continue
        assert found == list(Recording(tmp_path / "first").entries(**at(name, 3)))
    with pytest.raises(RecordingError):
        recording.verify()


def _index(folder: Path):
    with Segment(Recording(write(folder, sample())).files[0]) as segment:
        return segment.index()


def with_summary(folder: Path, repeat_records: int, repeat_groups: int) -> Recording:
    """A recording whose summary has only the place of its index, several times."""
    recording = Recording(write(folder, sample()))
    path = recording.files[0]
    data = path.read_bytes()
    start, offsets, _ = struct.unpack("<QQI", data[-28:-8])
    groups = [struct.unpack_from("<BQQ", data, at + 9) for at in range(offsets, len(data) - 37, 26)]
    at, size = next(one[1:] for one in groups if one[0] == Opcode.ATTACHMENT_INDEX)
    group = data[at : at + size] * repeat_records
    place = record(SummaryOffset(group_opcode=0x0A, group_start=start, group_length=len(group)))
    body, middle = group + place * repeat_groups, start + len(group)
    head = struct.pack("<BQQQ", Opcode.FOOTER, 20, start, middle)
    crc = struct.pack("<I", zlib.crc32(head, zlib.crc32(body)))
    path.write_bytes(data[:start] + body + head + crc + data[-8:])
    return recording


def test_a_summary_that_repeats_its_groups_is_not_read_again_and_again(tmp_path):
    recording = with_summary(tmp_path, 1, 100_000)

    found, most = measured(lambda: list(recording.entries(seq=3)))
    assert found == list(Recording(write(tmp_path / "plain", sample())).entries(seq=3))
    assert most < 12 << 20


def test_a_summary_with_a_large_group_is_refused(tmp_path):
    recording = with_summary(tmp_path, 20_000, 1)
    with pytest.raises(RecordingError, match="group of"):
        list(recording.entries(seq=3))


def test_a_hostile_about_is_a_typed_error(tmp_path):
    text = b'{"run_id": ' + b"[" * 100_000
    for about in (text, b"[]", msgspec.json.encode(ABOUT)[:-1]):
        head = {"format": "1", "about": about.decode(), "crc32": str(zlib.crc32(about))}
        path = tmp_path / "000-00000000.mcap"
        path.write_bytes(b"\x89MCAP0\r\n" + record(Metadata(name="railbus", metadata=head)))
        with pytest.raises(RecordingError):
            Recording(path)


def test_a_snapshot_that_is_a_bomb_is_carried_and_refused_where_it_is_opened(tmp_path):
    plain = entry(0, Hook.TRAIN_BEGIN)
    event = msgspec.structs.replace(plain.event, snapshot=DEEP)
    bomb = type(plain)(event, plain.decision)
    assert pack_event(bomb).endswith(DEEP)
    (found,) = Recording(write(tmp_path, [bomb]))
    assert isinstance(found, Committed)
    with pytest.raises(RailbusError):
        assert found.event.cb_params
    with pytest.raises(RailbusError):
        Recording(tmp_path).verify()
