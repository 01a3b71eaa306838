"""The files of recordings by name: `<incarnation>-<first seq>.mcap` in a run's folder of events."""

import fcntl
import re
from pathlib import Path

from railbus.schemas.errors import RecordingError

NAME = re.compile(r"(\d{3,9})-(\d{8,18})\.mcap")
FOLDER = "events"


def segment_name(incarnation: int, first: int) -> str:
    """The name of the file that begins with event `first`."""
    return f"{incarnation:03d}-{first:08d}.mcap"


def segments_of(path: Path) -> dict[int, list[Path]]:
    """The files of a recording by incarnation, each in the order of events.

    Args:
        path: a run's directory, its folder of events, or one file.

    Raises:
        RecordingError: there are none.
    """
    if path.is_file():
        found = NAME.fullmatch(path.name)
        return {int(found[1]) if found else 0: [path]}
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files: dict[int, list[tuple[int, Path]]] = {}
    try:
        for one in folder.iterdir() if folder.is_dir() else ():
            if (named := NAME.fullmatch(one.name)) and one.is_file():
                files.setdefault(int(named[1]), []).append((int(named[2]), one))
    except OSError as error:
        raise RecordingError(f"cannot read '{folder}': {error.strerror}") from error
    if not files:
        runs = sorted(one.parent.name for one in path.glob(f"*/{FOLDER}/") if one.is_dir())
        hint = f", but of runs {', '.join(runs[:5])}; name one of them" if runs else ""
        raise RecordingError(f"there is no recording in '{path}'{hint}")
    return {number: [one for _, one in sorted(files[number])] for number in sorted(files)}


def being_written(path: Path) -> bool:
    """Whether a writer is at work on that file: it holds a lock on it as long as it lives."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
