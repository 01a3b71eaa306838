"""One file of a recording, open for reading."""

import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from mcap.opcode import Opcode

from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Committed, Decision, Gap
from railbus.schemas.hooks import Hook

from . import scan
from .about import About
from .segment import (
    ABOUT,
    COLUMNS,
    FORMAT,
    INDEX,
    MOST,
    SUM,
    Acted,
    LogLine,
    acts,
    checksum,
    unpack_event,
)

logger = logging.getLogger(__name__)

Item: TypeAlias = Committed | Gap | LogLine
T = TypeVar("T")


class NotBegun(RecordingError):
    """Raised for a file that breaks off before it says which run it is of: nothing is in it."""


class Segment:
    """Reads one file, which may be torn; all of it is checked before it is believed.

    Attributes:
        about: the run.
        notes: what else the file says of it, by topic.
        end: the byte after the last record that was read.

    Raises:
        NotBegun: its writer has just opened it, or was killed then.
        RecordingError: it is no segment of a recording, or does not hold what says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise RecordingError(f"cannot read '{path}': {error.strerror}") from error
        try:
            self.footer = scan.sealed(self.file)
            self.notes, self.end = self._head()
            self.about = self._about()
            self.notes = {name: one for name, one in self.notes.items() if self._holds(name, one)}
        except BaseException:
            self.file.close()
            raise
        self._channels: dict[int, str] = {}
        self._index: np.ndarray[Any, Any] | None = None

    def __enter__(self) -> "Segment":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def items(self, since: int | None = None) -> Iterator[Item]:
        """What is in its chunks, in order, from that byte on.

        Raises:
            RecordingError: at damage; what came before is right.
        """
        if since is not None:
            self.end = since
            if not self._channels:
                self._learn()
        acted: Acted | None = None
        for part in scan.parts(self.file, since):
            if part.opcode == Opcode.CHUNK:
                for topic, data in scan.messages(part, self._channels):
                    if topic == "decision":
                        acted = _decoded(Acted, data)
                        continue
                    item = self._item(topic, data, acted)
                    if isinstance(item, Committed):
                        acted = None
                    yield item
            if part.opcode == Opcode.DATA_END:
                return
            self.end = part.end
        if self.footer is not None:
            raise RecordingError(f"'{self.path}' was closed, but its end is missing")

    def index(self) -> np.ndarray[Any, Any]:
        """A row of `segment.COLUMNS` for each chunk that holds events, as int64."""
        if self._index is None:
            found = self.scanned() if self.footer is None else self._stored()
            if (found < 0).any():
                raise RecordingError(f"the index of '{self.path}' is damaged")
            if (np.diff(found, axis=0) < 0).any():
                raise RecordingError(f"the index of '{self.path}' is damaged: it goes back")
            self._index = found
        return self._index

    def messages(self) -> int | None:
        """How many messages the writer of a closed file has counted."""
        if self.footer is None:
            return None
        statistics, _ = scan.summary(self.file, self.footer)
        return None if statistics is None else statistics.message_count

    def check(self) -> None:
        """Compare a closed file with what its writer said of it: checksum, count and index.

        Raises:
            RecordingError: something is another.
        """
        held = sum(2 if isinstance(one, Committed) and acts(one) else 1 for one in self.items())
        if held != self.messages():
            raise RecordingError(
                f"'{self.path}' holds {held} messages, its writer counted {self.messages()}"
            )
        if not np.array_equal(self.index(), self.scanned()):
            raise RecordingError(f"the index of '{self.path}' is damaged: it is of another file")
        self._check_sum()

    def _check_sum(self) -> None:
        end, given = next(
            (part.offset, int.from_bytes(part.body[:4], "little"))
            for part in scan.parts(self.file)
            if part.opcode == Opcode.DATA_END
        )
        self.file.seek(0)
        crc = 0
        while end:
            piece = self.file.read(min(end, 1 << 20))
            crc, end = zlib.crc32(piece, crc), end - len(piece)
        if crc != given:
            raise RecordingError(f"'{self.path}' is damaged: wrong checksum of its data")

    def _item(self, topic: str, data: bytes, acted: Acted | None) -> Item:
        if topic == "gap":
            gap = _decoded(Gap, data)
            if gap.last >= MOST:
                raise RecordingError(f"a gap ends at event #{gap.last}, which no run has")
            return gap
        if topic == "log":
            return _decoded(LogLine, data)
        hook = _hook(topic)
        begun = unpack_event(data, self.about, hook)
        event = begun.event
        decision = Decision(run_id=event.run_id, seq=event.seq, hook=hook)
        found = None if acted is None else (acted.seq, acted.hook)
        if found != ((event.seq, hook) if begun.acted else None):
            raise RecordingError(f"{event} does not have its own decision before it")
        if acted is None:
            return Committed(event, decision, (), begun.step, begun.epoch)
        return Committed(event, acted.decision, acted.acks, begun.step, begun.epoch)

    def _head(self) -> tuple[dict[str, dict[str, str]], int]:
        """The metadata before the first chunk, and where that begins."""
        notes: dict[str, dict[str, str]] = {}
        end = 0
        if not scan.begins(self.file):
            return notes, end
        for part in scan.parts(self.file):
            if part.opcode not in (Opcode.HEADER, Opcode.METADATA):
                break
            if part.opcode == Opcode.METADATA:
                name, values = scan.metadata(part)
                notes[name] = values
            end = part.end
        return notes, end

    def _about(self) -> About:
        head = self.notes.pop(ABOUT, None)
        if head is None and self.footer is None and next(self._chunks(), None) is None:
            raise NotBegun(f"'{self.path}' breaks off before it says which run it is of")
        if head is None:
            raise RecordingError(f"'{self.path}' does not say which run it is of")
        if head.get("format") != FORMAT:
            raise RecordingError(
                f"'{self.path}' has format {head.get('format')!r}, this version reads {FORMAT!r}"
            )
        text = head.get("about", "").encode()
        if head.get("crc32") != str(zlib.crc32(text)):
            raise RecordingError(f"'{self.path}' is damaged: wrong checksum of what the run is")
        return _decoded_json(About, text)

    def _holds(self, name: str, note: dict[str, str]) -> bool:
        """Whether a note is as it was written."""
        given = note.pop(SUM, None)
        if given != checksum(name, note):
            logger.warning("'%s': the note %r is damaged and left out", self.path, name)
            return False
        return True

    def _chunks(self) -> Iterator[scan.Part]:
        if not scan.begins(self.file):
            return iter(())
        return (part for part in scan.parts(self.file) if part.opcode == Opcode.CHUNK)

    def _learn(self) -> None:
        """The channels stand in the first chunk."""
        for part in self._chunks():
            for _ in scan.messages(part, self._channels):
                pass
            return

    def _stored(self) -> np.ndarray[Any, Any]:
        assert self.footer is not None
        _, places = scan.summary(self.file, self.footer)
        place = next((one.offset for one in places if one.name == INDEX), None)
        part = None if place is None else next(scan.parts(self.file, place), None)
        if part is None or part.opcode != Opcode.ATTACHMENT:
            raise RecordingError(f"'{self.path}' has no index")
        _, data = scan.attachment(part)
        if len(data) % (8 * len(COLUMNS)):
            raise RecordingError(f"the index of '{self.path}' is damaged")
        return np.frombuffer(data, "<i8").reshape(-1, len(COLUMNS))

    def scanned(self) -> np.ndarray[Any, Any]:
        """What the index of this file has to be."""
        rows, step, channels = [], 0, dict[int, str]()
        for part in self._chunks():
            first: tuple[int, ...] | None = None
            for topic, data in scan.messages(part, channels):
                if topic in ("decision", "gap", "log"):
                    continue
                begun = unpack_event(data, self.about, _hook(topic))
                if begun.event.hook.mode == "train":
                    step = begun.step
                first = first or (begun.event.seq, begun.event.time_ns, step, begun.epoch)
            if first is not None:
                rows.append((part.offset, *first))
        return np.array(rows, np.int64).reshape(-1, len(COLUMNS))


def closed(path: Path) -> bool:
    """Whether a file was closed by its writer.

    Raises:
        RecordingError: it was, and something in it is not as it was then.
    """
    try:
        with Segment(path) as segment:
            if segment.footer is not None:
                segment.check()
            return segment.footer is not None
    except NotBegun:
        return False


def _hook(topic: str) -> Hook:
    try:
        return Hook(topic)
    except ValueError as error:
        raise RecordingError(f"unknown channel {topic!r}") from error


def _decoded(kind: type[T], data: bytes) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordingError(f"a message is no {kind.__name__}: {error}") from error


def _decoded_json(kind: type[T], data: bytes) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordingError(f"the metadata is no {kind.__name__}: {error}") from error
