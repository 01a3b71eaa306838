"""Reading MCAP files that may be torn, damaged or hostile: limits before any work (C9)."""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from typing import IO, Any, NamedTuple, TypeAlias

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import (
    Attachment,
    AttachmentIndex,
    Channel,
    Chunk,
    Footer,
    Metadata,
    Statistics,
    SummaryOffset,
)
from mcap.writer import MCAP0_MAGIC

from railbus.schemas.errors import RecordingError

MAX_CHUNK = 16 << 20  # bytes of a chunk, unpacked
MAX_RECORD = 64 << 20  # bytes of an index; that of 10^6 events has 0.6 MB
MAX_HEAD = 4 << 20  # bytes of any other record: what is built from it takes many times more
MAX_GROUP = 64 << 10  # bytes of a summary's group that is looked at, or of a channel
MAX_GROUPS = 16
_RECORD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_FOOTER = _RECORD.size + 20 + len(MCAP0_MAGIC)  # bytes that a sealed file ends with
_LARGEST = {  # bytes of the records of the data section
    int(Opcode.HEADER): MAX_HEAD,
    int(Opcode.METADATA): MAX_HEAD,
    int(Opcode.CHUNK): MAX_CHUNK + MAX_GROUP,  # packed by zstd it may be a little larger
    int(Opcode.ATTACHMENT): MAX_RECORD,
    int(Opcode.DATA_END): MAX_HEAD,
}

Message: TypeAlias = tuple[str, bytes]  # topic and data


class Part(NamedTuple):
    """One record as it lies in the file."""

    opcode: int
    offset: int
    body: bytes

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.offset + _RECORD.size + len(self.body)


def begins(file: IO[bytes]) -> bool:
    """Whether the file begins as MCAP, and is at its first record then; False: torn before that.

    Raises:
        RecordingError: it is another kind of file.
    """
    file.seek(0)
    magic = file.read(len(MCAP0_MAGIC))
    if not MCAP0_MAGIC.startswith(magic):
        raise RecordingError(f"'{file.name}' is no MCAP file")
    return len(magic) == len(MCAP0_MAGIC)


def sealed(file: IO[bytes]) -> Footer | None:
    """The footer of a file that was closed; None where its writer is at work or was killed."""
    if file.seek(0, 2) < _FOOTER + len(MCAP0_MAGIC):
        return None
    file.seek(-_FOOTER, 2)
    tail = file.read()
    opcode, length = _RECORD.unpack_from(tail)
    if not tail.endswith(MCAP0_MAGIC) or (opcode, length) != (Opcode.FOOTER, 20):
        return None
    footer: Footer = _read(Footer, Part(opcode, 0, tail[_RECORD.size :]))
    return footer


def parts(file: IO[bytes], offset: int | None = None) -> Iterator[Part]:
    """The records of the data section, from `offset` to its end, as far as they are whole.

    Raises:
        RecordingError: at a record that no recording has, or that is too large.
    """
    size = file.seek(0, 2)
    at = len(MCAP0_MAGIC) if offset is None else offset
    while at + _RECORD.size <= size:
        file.seek(at)
        opcode, length = _RECORD.unpack(file.read(_RECORD.size))
        most = _LARGEST.get(opcode)
        if most is None:
            raise RecordingError(f"unknown record {opcode} at byte {at}")
        if length > most:
            raise RecordingError(f"a record of {length} bytes at byte {at}, the limit is {most}")
        if at + _RECORD.size + length > size:
            return
        yield Part(opcode, at, file.read(length))
        if opcode == Opcode.DATA_END:
            return
        at += _RECORD.size + length


def metadata(part: Part) -> tuple[str, dict[str, str]]:
    """A metadata record's name and values."""
    record = _read(Metadata, part)
    return record.name, record.metadata


def attachment(part: Part) -> tuple[str, bytes]:
    """An attachment's name and data.

    Raises:
        RecordingError: its checksum is wrong.
    """
    record = _read(Attachment, part)
    given = int.from_bytes(part.body[-4:], "little")
    if given != zlib.crc32(part.body[:-4]):
        raise RecordingError(f"the attachment at byte {part.offset} is damaged: wrong checksum")
    return record.name, record.data


def messages(part: Part, channels: dict[int, str]) -> Iterator[Message]:
    """The messages of a chunk; `channels` is told those that the chunk brings.

    Raises:
        RecordingError: it is damaged, or larger than it may be.
    """
    data = _unpacked(_read(Chunk, part), part.offset)
    at, end = 0, len(data)
    while at < end:
        if at + _RECORD.size > end:
            raise RecordingError(f"the chunk at byte {part.offset} ends inside of a record")
        opcode, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + length > end:
            raise RecordingError(f"the chunk at byte {part.offset} ends inside of a record")
        if opcode == Opcode.MESSAGE and length >= _MESSAGE.size:
            topic = channels.get(_MESSAGE.unpack_from(data, at)[0])
            if topic is None:
                raise RecordingError(f"a message of no channel in the chunk at byte {part.offset}")
            yield topic, data[at + _MESSAGE.size : at + length]
        elif opcode == Opcode.CHANNEL and length <= MAX_GROUP:
            channel = _read(Channel, Part(opcode, part.offset, data[at : at + length]))
            channels[channel.id] = channel.topic
        elif opcode != Opcode.SCHEMA:
            raise RecordingError(f"unknown record {opcode} in the chunk at byte {part.offset}")
        at += length


def summary(file: IO[bytes], footer: Footer) -> tuple[Statistics | None, list[AttachmentIndex]]:
    """The statistics and the places of the attachments of a sealed file.

    Raises:
        RecordingError: it is damaged.
    """
    end = file.seek(0, 2) - _FOOTER
    start, offsets = footer.summary_start, footer.summary_offset_start
    if not len(MCAP0_MAGIC) <= start <= offsets <= end or end - start > MAX_RECORD:
        raise RecordingError("the footer points outside of the file")
    file.seek(start)
    data = file.read(end - start)
    tail = _RECORD.pack(Opcode.FOOTER, 20) + struct.pack("<QQ", start, offsets)
    if zlib.crc32(tail, zlib.crc32(data)) != footer.summary_crc:
        raise RecordingError("the summary is damaged: wrong checksum")
    statistics, places = None, []
    for part in _groups(data, start, offsets - start):
        if part.opcode == Opcode.STATISTICS:
            statistics = _read(Statistics, part)
        elif part.opcode == Opcode.ATTACHMENT_INDEX:
            places.append(_read(AttachmentIndex, part))
    return statistics, places


def _groups(data: bytes, start: int, offsets: int) -> Iterator[Part]:
    """The records of the summary's groups of statistics and attachments."""
    for part in islice(_records(data, offsets, len(data)), MAX_GROUPS):
        group = _read(SummaryOffset, part)
        if group.group_opcode in (Opcode.STATISTICS, Opcode.ATTACHMENT_INDEX):
            if group.group_length > MAX_GROUP:
                raise RecordingError(f"the summary has a group of {group.group_length} bytes")
            first = group.group_start - start
            yield from _records(data, first, min(first + group.group_length, len(data)))


def _records(data: bytes, at: int, end: int) -> Iterator[Part]:
    while 0 <= at <= end - _RECORD.size:
        opcode, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield Part(opcode, at, data[at : at + length])
        at += length


def _unpacked(chunk: Chunk, offset: int) -> bytes:
    if chunk.uncompressed_size > MAX_CHUNK:
        raise RecordingError(
            f"the chunk at byte {offset} says that it has {chunk.uncompressed_size} bytes, the "
            f"limit is {MAX_CHUNK}"
        )
    if chunk.compression == "zstd":
        data = _decompressed(chunk, offset)
    elif chunk.compression == "":
        data = chunk.data
    else:
        raise RecordingError(f"the chunk at byte {offset} is packed by {chunk.compression!r}")
    if len(data) != chunk.uncompressed_size or zlib.crc32(data) != chunk.uncompressed_crc:
        raise RecordingError(f"the chunk at byte {offset} is damaged: wrong checksum")
    return data


def _decompressed(chunk: Chunk, offset: int) -> bytes:
    """No more than the chunk says that it has, whatever the packed bytes say."""
    machine = zstandard.ZstdDecompressor(max_window_size=MAX_CHUNK)
    try:
        with machine.stream_reader(chunk.data) as reader:
            return bytes(reader.read(chunk.uncompressed_size + 1))
    except zstandard.ZstdError as error:
        raise RecordingError(f"the chunk at byte {offset} is damaged: {error}") from error


def _read(kind: Any, part: Part) -> Any:
    """A record; mcap's own have no types."""
    try:
        return kind.read(_stream(part.body))
    except Exception as error:  # the parser of a damaged record may raise anything
        raise RecordingError(f"the {kind.__name__} at byte {part.offset} is damaged") from error


def _stream(data: bytes) -> ReadDataStream:
    return ReadDataStream(BytesIO(data))
