"""Making a torn recording whole: what is right in it, closed as its writer would have closed it."""

import fcntl
import os
import shutil
from pathlib import Path

import msgspec

from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Committed, Gap

from .reader import Segment
from .recording import after, segments_of
from .segment import SegmentWriter


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one file that was torn or damaged.

    Attributes:
        path: the file.
        torn: where the original is kept.
        events: how many events the file has now; it is gone where there were none.
        reason: what was wrong with it.
    """

    path: Path
    torn: Path
    events: int
    reason: str


def recover(path: str | Path) -> list[Recovered]:
    """Replace each torn or damaged file by one with its right part, closed; originals are kept.

    Twice is once. What follows a damaged place is left out, the files after it too: a recording is
    a prefix of its run.

    Args:
        path: a run's directory, its `events` folder, or one file.

    Raises:
        RecordingError: there is no recording, or one that is still being written.
    """
    done = []
    for files in segments_of(Path(path)).values():
        expected: int | None = None
        broken = False
        for one in files:
            with _locked(one):
                result, expected = _recovered(one, expected, broken)
            if result is not None:
                done.append(result)
                broken = True
    return done


class _locked:
    """Holds the lock that a writer has as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RecordingError(f"'{self._file.name}' is still being written") from error

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _recovered(
    path: Path, expected: int | None, broken: bool
) -> tuple[Recovered | None, int | None]:
    """What was done with a file, and the `seq` that comes after it."""
    new = path.with_suffix(".new")
    try:
        segment = Segment(path)
    except RecordingError as error:
        return _replaced(path, None, 0, str(error)), expected
    reason = "it follows a torn or damaged file" if broken else None
    events = 0
    with segment, new.open("wb") as file:
        writer = SegmentWriter(file, segment.about, segment.notes)
        try:
            for item in () if broken else segment.items():
                if isinstance(item, (Committed, Gap)):
                    first = item.first if isinstance(item, Gap) else item.event.seq
                    if expected is not None and first != expected:
                        raise RecordingError(f"expected event #{expected}, got #{first}")
                    expected = after(item)
                    events += 1
                writer.write(item)
        except RecordingError as error:
            reason = str(error)
        writer.seal()
    if reason is None and segment.footer is None:
        reason = "its writer did not close it"
    if reason is None:
        new.unlink()
        return None, expected
    return _replaced(path, new, events, reason), expected


def _replaced(path: Path, new: Path | None, events: int, reason: str) -> Recovered:
    """Keep the original under another name before its own goes to the new file."""
    torn = path.with_suffix(".mcap.torn")
    if not torn.exists():
        shutil.copyfile(path, part := path.with_suffix(".part"))
        os.replace(part, torn)
    if new is not None and events:
        os.replace(new, path)
    else:
        path.unlink()
        if new is not None:
            new.unlink()
    return Recovered(path=path, torn=torn, events=events, reason=reason)
