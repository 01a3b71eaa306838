"""An MCAP file as it is written: mcap's own records, without its writer's cost for each message.

`mcap.writer.Writer` takes 6 us of Python for a message, which a run beside it has to wait for.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any

import zstandard
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import (
    Attachment,
    AttachmentIndex,
    Channel,
    Chunk,
    ChunkIndex,
    DataEnd,
    Footer,
    Header,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
    SummaryOffset,
)
from mcap.writer import MCAP0_MAGIC

MEDIA = "application/octet-stream"
_MESSAGE = struct.Struct("<BQHIQQ")
_MESSAGE_HEAD = _MESSAGE.size - 9  # bytes of its fields before the data
_FOOTER_HEAD = struct.Struct("<BQQQ")
_GROUPS = (  # of the summary, in their order
    Opcode.SCHEMA,
    Opcode.CHANNEL,
    Opcode.STATISTICS,
    Opcode.CHUNK_INDEX,
    Opcode.ATTACHMENT_INDEX,
    Opcode.METADATA_INDEX,
)


class Container:
    """Writes one file: metadata, then chunks of messages, then its summary.

    Args:
        file: new and empty.

    Attributes:
        size: bytes in the file so far.
    """

    def __init__(self, file: IO[bytes], profile: str, library: str) -> None:
        self.size = 0
        self._file, self._crc = file, 0
        self._builder = RecordBuilder()
        self._packer = zstandard.ZstdCompressor()
        self._summary: dict[Opcode, list[Any]] = {opcode: [] for opcode in _GROUPS}
        self._counts: Counter[int] = Counter()
        self._pending: list[bytes] = []
        self._filled = False
        self._chunk_ns: tuple[int, int] = (0, 0)
        self._write(MCAP0_MAGIC)
        self._put(Header(profile=profile, library=library))

    def metadata(self, name: str, values: Mapping[str, str]) -> None:
        """A record of strings."""
        offset, length = self._put(Metadata(name=name, metadata=dict(values)))
        self._summary[Opcode.METADATA_INDEX].append(
            MetadataIndex(offset=offset, length=length, name=name)
        )

    def channel(self, topic: str, encoding: str, schema: int) -> int:
        """A channel, said in the next chunk; returns its number."""
        known = self._summary[Opcode.CHANNEL]
        known.append(
            Channel(
                id=len(known) + 1,
                topic=topic,
                message_encoding=encoding,
                metadata={},
                schema_id=schema,
            )
        )
        self._pending.append(self._packed(known[-1]))
        return len(known)

    def schema(self, name: str, encoding: str, data: bytes) -> int:
        """A schema, said in the next chunk; returns its number."""
        known = self._summary[Opcode.SCHEMA]
        known.append(Schema(data=data, encoding=encoding, id=len(known) + 1, name=name))
        self._pending.append(self._packed(known[-1]))
        return len(known)

    def message(self, channel: int, log_ns: int, wall_ns: int, data: bytes) -> None:
        """A message of the present chunk; `log_ns` never goes back."""
        length = _MESSAGE_HEAD + len(data)
        head = _MESSAGE.pack(Opcode.MESSAGE, length, channel, 0, log_ns, wall_ns)
        self._pending += (head, data)
        self._counts[channel] += 1
        self._chunk_ns = (self._chunk_ns[0] if self._filled else log_ns, log_ns)
        self._filled = True

    def flush(self) -> None:
        """End the present chunk, and hand everything to the system."""
        if self._filled:
            self._chunk()
        self._file.flush()

    def finish(self, name: str, data: bytes) -> None:
        """Attach `data` and write the summary: nothing follows."""
        self.flush()
        said: dict[str, Any] = {
            "create_time": 0,
            "log_time": self._chunk_ns[1],
            "name": name,
            "media_type": MEDIA,
        }
        offset, length = self._put(Attachment(data=data, **said))
        self._summary[Opcode.ATTACHMENT_INDEX].append(
            AttachmentIndex(offset=offset, length=length, data_size=len(data), **said)
        )
        self._put(DataEnd(self._crc))
        self._summary[Opcode.STATISTICS].append(self._statistics())
        self._end()
        self._file.flush()

    def _chunk(self) -> None:
        data = b"".join(self._pending)
        first, last = self._chunk_ns
        packed = self._packer.compress(data)
        chunk = Chunk(
            compression="zstd",
            data=packed,
            message_end_time=last,
            message_start_time=first,
            uncompressed_crc=zlib.crc32(data),
            uncompressed_size=len(data),
        )
        self._pending, self._filled = [], False
        offset, length = self._put(chunk)
        self._summary[Opcode.CHUNK_INDEX].append(
            ChunkIndex(
                chunk_length=length,
                chunk_start_offset=offset,
                compression="zstd",
                compressed_size=len(packed),
                message_end_time=last,
                message_index_length=0,
                message_index_offsets={},
                message_start_time=first,
                uncompressed_size=len(data),
            )
        )

    def _statistics(self) -> Statistics:
        chunks = self._summary[Opcode.CHUNK_INDEX]
        return Statistics(
            attachment_count=len(self._summary[Opcode.ATTACHMENT_INDEX]),
            channel_count=len(self._summary[Opcode.CHANNEL]),
            channel_message_counts=dict(self._counts),
            chunk_count=len(chunks),
            message_count=self._counts.total(),
            message_end_time=chunks[-1].message_end_time if chunks else 0,
            message_start_time=chunks[0].message_start_time if chunks else 0,
            metadata_count=len(self._summary[Opcode.METADATA_INDEX]),
            schema_count=len(self._summary[Opcode.SCHEMA]),
        )

    def _end(self) -> None:
        """The summary, where its groups are, and the footer with the checksum of both."""
        start, groups, offsets = self.size, b"", b""
        for opcode, records in self._summary.items():
            group = b"".join(map(self._packed, records))
            place = SummaryOffset(
                group_opcode=opcode, group_start=start + len(groups), group_length=len(group)
            )
            offsets += self._packed(place)
            groups += group
        head = _FOOTER_HEAD.pack(Opcode.FOOTER, 20, start, start + len(groups))
        crc = zlib.crc32(head, zlib.crc32(groups + offsets))
        footer = Footer(
            summary_crc=crc, summary_offset_start=start + len(groups), summary_start=start
        )
        self._write(groups + offsets + self._packed(footer) + MCAP0_MAGIC)

    def _put(self, record: Any) -> tuple[int, int]:
        """Where it is now in the file, and its length."""
        return self._write(self._packed(record))

    def _packed(self, record: Any) -> bytes:
        record.write(self._builder)
        return bytes(self._builder.end())  # type: ignore[no-untyped-call]  # mcap's

    def _write(self, data: bytes) -> tuple[int, int]:
        offset = self.size
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.size += len(data)
        return offset, len(data)
