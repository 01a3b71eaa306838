"""Writing a run down: which file, when it is in it, when the next one begins (C9)."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal, get_args

from railbus.schemas.events import Committed, Gap

from .about import About
from .folder import FOLDER, segment_name
from .segment import LogLine, SegmentWriter

logger = logging.getLogger(__name__)

Flush = Literal["lifecycle", "every", "durable"]
FLUSHES: tuple[Flush, ...] = get_args(Flush)
FLUSH_SECONDS = 0.3  # after which what was written is in the file
ROTATE_BYTES = 64 << 20
ROTATE_SECONDS = 600.0
LOCK_TRIES, LOCK_PAUSE = 10, 0.02  # who looks whether a file is locked holds it for a moment


class Tape:
    """The files of one incarnation of a run, written one after another.

    Args:
        directory: the run's.
        flush: when an event is in its file: "lifecycle": with the next that is no step's, a stop,
            64 more or 0.3 seconds; "every": at once; "durable": at once and on the disk.
        notes: what the files say of the run beside `about`, by topic.
        rotate_bytes, rotate_seconds: at what size and age the next file begins.
    """

    def __init__(
        self,
        directory: Path,
        about: About,
        flush: Flush,
        notes: Mapping[str, Mapping[str, str]],
        rotate_bytes: int = ROTATE_BYTES,
        rotate_seconds: float = ROTATE_SECONDS,
    ) -> None:
        self._folder = directory / FOLDER
        self._about, self._flush, self._notes = about, flush, notes
        self._rotate_bytes, self._rotate_seconds = rotate_bytes, rotate_seconds
        self._file: IO[bytes] | None = None
        self._writer: SegmentWriter | None = None
        self._opened = self._since = 0.0
        self._next = 0

    def write(self, item: Committed | Gap | LogLine) -> None:
        """The next of the run.

        Raises:
            OSError, RecordingError: the file cannot take it; nothing more should be written.
        """
        if isinstance(item, Committed) and self._due():
            self.seal()
        writer = self._writer or self._begin()
        if not writer.pending:
            self._since = time.monotonic()
        writer.write(item)
        if isinstance(item, Gap):
            self._next = item.last + 1
        if not isinstance(item, Committed):
            return
        self._next = item.event.seq + 1
        if self._flush != "lifecycle":
            self._flushed(writer)
        elif not item.event.hook.is_step or item.decision.stops:
            writer.flush()
        else:
            self.idle()

    def idle(self) -> None:
        """Called now and then: what has waited for long enough goes into the file."""
        writer = self._writer
        if writer is not None and writer.pending and time.monotonic() > self._since + FLUSH_SECONDS:
            writer.flush()

    def seal(self) -> None:
        """Close the present file, with index and summary."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.seal()
                self._sync_folder()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file as it is."""
        file, self._file, self._writer = self._file, None, None
        if file is not None:
            file.close()

    def open(self, path: Path) -> IO[bytes]:
        """A new file."""
        return path.open("xb")

    def _due(self) -> bool:
        """Whether the next file begins; only now, so that a run under way always holds a lock."""
        aged = time.monotonic() - self._opened > self._rotate_seconds
        return self._writer is not None and (aged or self._writer.size > self._rotate_bytes)

    def _begin(self) -> SegmentWriter:
        path = self._folder / segment_name(self._about.incarnation, self._next)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self.open(path)
        _lock(self._file, path)
        self._writer = SegmentWriter(self._file, self._about, self._notes)
        self._opened = time.monotonic()
        self._flushed(self._writer)
        self._sync_folder()
        return self._writer

    def _flushed(self, writer: SegmentWriter) -> None:
        writer.flush(sync=self._flush == "durable")

    def _sync_folder(self) -> None:
        if self._flush != "durable":
            return
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _lock(file: IO[bytes], path: Path) -> None:
    """Hold a file that is written; a recording is worth more than its lock."""
    reason: OSError | None = None
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            reason = error
            threading.Event().wait(LOCK_PAUSE)
        except OSError as error:
            reason = error
            break
    logger.warning(
        "cannot lock '%s' (%s): others take it for broken off", path, reason and reason.strerror
    )
