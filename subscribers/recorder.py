"""`Recorder`: writes a run down as it goes on, beside the run."""

import logging
import platform
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from railbus.bus.about import About
from railbus.bus.folder import FOLDER, NAME
from railbus.bus.segment import LogLine
from railbus.bus.sequencer import Policy
from railbus.bus.tape import FLUSHES, Flush, Tape
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed, Gap

from .checks import path
from .follower import Follower
from .tallies import line_of

LAGS = {"lifecycle": 4096, "every": 1, "durable": 0}
PACKAGES = ("railbus", "jax", "jaxlib", "flax", "optax", "numpy", "msgpack", "msgspec", "mcap")
GIT_SECONDS = 5.0  # that git may take to tell the revision


class Recorder(Follower):
    """Writes all committed events, what their acks said, Railbus' log and the tallies into files.

    An observer, in a thread of its own, that loses nothing: the run waits where the disk is slower
    than the run for long. The files, `<directory>/<run_id>/events/*.mcap`, are read by `Recording`,
    whole or torn. `train`, `fit` and `eval` have the short form `record=directory`.

    Args:
        directory: of all runs; the run's own is made in it.
        flush: when an event is in the file, and survives a kill of this process. "lifecycle": with
            the next event that is no step's, and within 64 events or 1 second; "every": before
            the next but one is committed; "durable": on the disk, safe from a power cut too,
            before the next is published, which costs the run some 0.3 ms an event.
        on_error: what a full disk does: "detach" goes on without a recording, "stop" ends the run,
            "raise" raises when it has ended. In each case one error is logged, and what was
            written before is a right prefix.

    Attributes:
        path: the run's directory, once a run has begun.

    Raises:
        ArgumentError, ArgumentTypeError: for a wrong argument; and before anything is compiled,
            where the directory cannot be made or holds a recording of a run of that name.
    """

    drain_seconds = 120.0

    def __init__(
        self, directory: str | Path, flush: Flush = "lifecycle", *, on_error: Policy = "detach"
    ) -> None:
        if flush not in FLUSHES:
            raise ArgumentError(f"flush must be one of {FLUSHES}, got {flush!r}")
        self.directory = path("directory", directory)
        self.flush, self.on_error, self.lag = flush, on_error, LAGS[flush]
        self.path: Path | None = None
        self._tape: Tape | None = None
        self._lines = _Lines()

    def claim(self, run_id: str, incarnation: int) -> int:
        """Make the run's directory, before the run is set up.

        Returns:
            The incarnation that it is to be: the given one, or the next that is not there yet.

        Raises:
            ArgumentError: it cannot be made, another run of that name is there, or the recorder is
                at work on another run.
        """
        self._refuse_second()
        folder = self.directory / run_id / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = [NAME.fullmatch(one.name) for one in folder.iterdir()]
        except OSError as error:
            raise ArgumentError(f"cannot record in '{folder}': {error.strerror}") from error
        found = [int(name[1]) for name in names if name is not None]
        if found and not incarnation:
            raise ArgumentError(
                f"'{folder}' holds a recording of a run {run_id!r} already; give this one another "
                f"run_id, or record elsewhere"
            )
        return max([incarnation, *(one + 1 for one in found)])

    def set_up(self, about: About) -> None:
        """A run begins."""
        self._refuse_second()
        self.path = self.directory / about.run_id
        notes = {"versions": _versions(), "git": _revision(), "device": {"device": about.device}}
        self._tape = Tape(self.path, about, self.flush, notes)
        self._lines.watch()

    def take(self, entry: Committed | Gap) -> None:
        """The next entry of the log."""
        assert self._tape is not None
        self._write_lines()
        self._tape.write(entry)
        self._lines.seq = 1 + (entry.last if isinstance(entry, Gap) else entry.event.seq)

    def idle(self) -> None:
        """What has waited for long enough goes into the file."""
        assert self._tape is not None
        self._write_lines()
        self._tape.idle()

    def over(self, failed: bool) -> None:
        """Close the file: sealed, or as it is where it could not be written."""
        self._lines.leave()
        assert self._tape is not None
        try:
            if not failed:
                self._write_lines()
                if self._lines.seq:
                    self._tape.write(line_of(self.tallies, self._lines.seq))
                self._tape.seal()
        finally:
            tape, self._tape = self._tape, None
            tape.close()

    def _refuse_second(self) -> None:
        if self._tape is not None:
            raise ArgumentError(
                f"this Recorder is at work on the run in '{self.path}'; give each of several runs at "
                f"once one of its own"
            )

    def _write_lines(self) -> None:
        assert self._tape is not None
        for line in self._lines.taken():
            self._tape.write(line)


def refuse_shared(recorders: Iterable[Recorder]) -> None:
    """Two recorders of one run need two directories.

    Raises:
        ArgumentError: they have one; `record=` is one of them, too.
    """
    taken = set()
    for one in recorders:
        folder = one.directory.resolve()
        if folder in taken:
            raise ArgumentError(
                f"two Recorders of this run write into '{one.directory}', record= counts as one; give "
                f"each its own directory"
            )
        taken.add(folder)


class _Lines(logging.Handler):
    """Railbus' log lines on their way into a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = 0
        self._kept: deque[LogLine] = deque()

    def watch(self) -> None:
        """A run begins."""
        self.seq, self._kept = 0, deque()
        logging.getLogger("railbus").addHandler(self)

    def leave(self) -> None:
        """The run is over."""
        logging.getLogger("railbus").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._kept.append(
            LogLine(
                seq=self.seq,
                wall_ns=time.time_ns(),
                level=record.levelname,
                logger=record.name,
                message=record.getMessage().encode(errors="backslashreplace").decode(),
            )
        )

    def taken(self) -> Iterator[LogLine]:
        """The lines that were kept, once."""
        while self._kept:
            yield self._kept.popleft()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _revision() -> dict[str, str]:
    """The working directory's git revision, if it has one."""
    git = shutil.which("git")
    if git is None:
        return {}
    command = [git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {"revision": done.stdout.strip()} if done.returncode == 0 else {}
