"""Making a torn recording whole: what is right in it, closed as its writer would have closed it."""

import fcntl
import os
import shutil
from contextlib import suppress
from filecmp import cmp
from itertools import count
from pathlib import Path

import msgspec

from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Committed

from .folder import segments_of
from .reader import Segment, closed
from .recording import after, contiguous
from .segment import SegmentWriter


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one file that was torn or damaged.

    Attributes:
        path: the file.
        torn: where the original is kept.
        events: how many events the file has now; it is gone where none was right.
        reason: what was wrong with it.
    """

    path: Path
    torn: Path
    events: int
    reason: str


def recover(path: str | Path) -> list[Recovered]:
    """Replace each torn or damaged file by one with its right part, closed; originals are kept.

    Twice is once. What follows a place where events are missing is left out, later files too: a
    recording is a prefix of its run.

    Args:
        path: a run's directory, its `events` folder, or one file.

    Raises:
        RecordingError: there is no recording, or one that is still being written.
    """
    done = []
    path = Path(path)
    for files in _found(path).values():
        expected = None if path.is_file() else 0
        for one in files:
            with _locked(one):
                result, expected = _recovered(one, expected)
            if result is not None:
                done.append(result)
    return done


def _found(path: Path) -> dict[int, list[Path]]:
    try:
        return segments_of(path)
    except RecordingError:
        if any(path.rglob("*.torn")):  # nothing of it was right
            return {}
        raise


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


def _recovered(path: Path, expected: int | None) -> tuple[Recovered | None, int | None]:
    """What was done with a file, and the `seq` that comes after it."""
    try:
        return None, _sound(path, expected)
    except RecordingError as error:
        reason = str(error)
    new = path.with_suffix(".new")
    events, expected = _rewritten(path, new, expected)
    torn = _kept(path)
    if events:
        os.replace(new, path)
    else:
        path.unlink()
        new.unlink(missing_ok=True)
    _sync(path.parent)
    return Recovered(path=path, torn=torn, events=events, reason=reason), expected


def _sound(path: Path, expected: int | None) -> int | None:
    """The `seq` after a file that is closed and in which nothing is wrong.

    Raises:
        RecordingError: another file.
    """
    if not closed(path):
        raise RecordingError("its writer did not close it")
    with Segment(path) as segment:
        for item in contiguous(segment, None, expected):
            expected = after(item, expected)
    return expected


def _rewritten(path: Path, new: Path, expected: int | None) -> tuple[int, int | None]:
    """Write the right part of a file into a new one: how many events that has, what comes next."""
    events = 0
    with suppress(RecordingError), Segment(path) as segment, new.open("wb") as file:
        writer = SegmentWriter(file, segment.about, segment.notes)
        with suppress(RecordingError):
            for item in contiguous(segment, None, expected):
                writer.write(item)
                expected = after(item, expected)
                events += isinstance(item, Committed)
        writer.seal()
    return events, expected


def _kept(path: Path) -> Path:
    """A copy of the original, under a name that no other one has."""
    names = (path.with_suffix(f".mcap.torn{number or ''}") for number in count())
    torn = next(one for one in names if not one.exists() or cmp(one, path, shallow=False))
    if not torn.exists():
        part = path.with_suffix(".part")
        shutil.copyfile(path, part)
        _sync(part)
        os.replace(part, torn)
        _sync(path.parent)
    return torn


def _sync(path: Path) -> None:
    """Have a file or the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
