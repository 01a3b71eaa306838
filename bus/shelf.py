"""Recorded runs as a bus has them, so that a service can show them (C9)."""

import logging
import threading
import time
from pathlib import Path

from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Committed

from .bus import EventBus
from .folder import being_written, segments_of
from .log import EventLog, Listener
from .recording import Recording

logger = logging.getLogger(__name__)

LOOKS = 0.5  # seconds between two looks for new runs


class RecordedLog(EventLog):
    """A run out of its files, which another process may still be writing; nobody can steer it.

    `head` and `ended` are as of the last `refresh`. A run that was broken off has ended, too.

    Attributes:
        incarnations: those of its directory when it was opened; the last one is shown.
        began: when, as `Event.wall_ns` has it.

    Raises:
        RecordingError: it is none, or is damaged where it begins or ends.
    """

    def __init__(self, path: Path) -> None:
        self._source = Recording(path)
        self.incarnations = self._source.incarnations
        super().__init__(self._source.about.run_id, events=1)
        self.about, self.recording, self.slots = self._source.about, path, {}
        first = next(self._source.entries(), None)
        self.began = first.event.wall_ns if isinstance(first, Committed) else 0
        self._looking = threading.Lock()
        self._whole = False
        self._seen: tuple[Path, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look at how far it is."""
        with self._looking:
            if self._whole:
                return
            file = self._source.files[-1]
            self.ended = not being_written(file)
            seen = file, file.stat().st_size
            if seen != self._seen and (newest := self._source.last) is not None:
                with self._lock:
                    self._ring.push(newest)
                assert self.about is not None
                self._whole = self.about.plan.ends_with(newest.event.hook)
            self._seen = seen
            self.ended = self.ended or self._whole

    def holds(self, since: int) -> bool:
        """It has no ring: everything is in its files."""
        return False

    def join(self, observer: Listener, since: int | None) -> None:
        """All of it was read: nothing follows."""
        self.refresh()
        observer.close()


class Shelf(EventBus):
    """The runs that are recorded in a directory, those too that begin or go on while it is open.

    Args:
        directory: of all runs, or of one.

    Raises:
        RecordingError: there is no such directory.
    """

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self._directory = Path(directory)
        if not self._directory.is_dir():
            raise RecordingError(f"there is no directory '{self._directory}'")
        self._known: dict[Path, RecordedLog] = {}
        self._refused: set[Path] = set()
        self._looked = -LOOKS

    @property
    def runs(self) -> dict[str, EventLog]:
        """Every run, in the order in which they began."""
        if time.monotonic() >= self._looked + LOOKS:
            self._look()
            self._looked = time.monotonic()
        logs = super().runs
        for log in logs.values():
            assert isinstance(log, RecordedLog)
            log.refresh()
        return logs

    def _look(self) -> None:
        """Take in runs that are new, and incarnations of known ones."""
        for path in (self._directory, *self._directory.iterdir()):
            try:
                if path.is_dir():
                    self._take_in(path)
            except (RecordingError, OSError) as error:
                if path not in self._refused:
                    self._refused.add(path)
                    logger.warning("'%s' is not shown: %s", path, error)
        found: dict[str, EventLog] = {}
        for log in sorted(self._known.values(), key=lambda one: one.began):
            found[log.run_id] = log
        with self._lock:
            self._logs = found

    def _take_in(self, path: Path) -> None:
        known = self._known.get(path)
        try:
            incarnations = tuple(segments_of(path))
        except RecordingError:  # another directory, or a run that has just been set up
            self._known.pop(path, None)
            return
        if known is None or known.incarnations != incarnations:
            self._known[path] = RecordedLog(path)
