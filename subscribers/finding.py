"""What a command is given to look at: a run's recording, by a path."""

from collections.abc import Callable, Iterator
from pathlib import Path

from railbus.bus.reader import Segment
from railbus.bus.recording import Entry, Recording
from railbus.schemas.errors import RecordingError

SHOWN = 5  # runs that are listed where there are several


class Metered(Recording):
    """A recording that tells how far its reading has come.

    Args:
        heard: called after each entry that was read through `entries`.
    """

    def __init__(
        self, path: Path, incarnation: int | None = None, heard: Callable[[], None] | None = None
    ) -> None:
        super().__init__(path, incarnation)
        self._heard = heard

    def __iter__(self) -> Iterator[Entry]:
        for entry in super().__iter__():
            yield entry
            if self._heard is not None:
                self._heard()


def run_at(path: Path) -> Path:
    """The recording that `path` leads to.

    Args:
        path: a run's directory, its `events` folder, a file, or a directory that holds one run.

    Raises:
        RecordingError: there is none, or there are several.
    """
    if path.is_file() or not path.is_dir() or _holds_events(path):
        return path
    runs = [one for one in path.iterdir() if one.is_dir() and _holds_events(one)]
    if not runs:
        raise RecordingError(f"there is no recording in '{path}'")
    if len(runs) == 1:
        return runs[0]
    runs.sort(key=lambda one: (one.stat().st_mtime_ns, one.name), reverse=True)
    names = ", ".join(f"'{one}'" for one in runs[:SHOWN])
    more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
    raise RecordingError(f"'{path}' holds {len(runs)} runs, name one: {names}{more}")


def was_closed(recording: Recording) -> bool:
    """Whether its writer has come to close its last file."""
    try:
        with Segment(recording.files[-1]) as last:
            return last.footer is not None
    except RecordingError:
        return False


def _holds_events(path: Path) -> bool:
    return any(path.glob("*.mcap")) or any(path.glob("events/*.mcap"))
