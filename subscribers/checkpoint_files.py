"""The files of a `ModelCheckpoint`: their names, which are kept, and those on their way."""

import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .checkpoint_config import CheckpointConfig
from .checkpoint_place import named, remove


class Saved(NamedTuple):
    """A file, when it was saved (seconds of the run's clock), and the monitored value, if any."""

    path: str
    at: float
    value: float | None


class Files:
    """What one run has saved; a file goes only once a newer or better one is safe.

    Args:
        most: how many are kept, by `rank`; 0 keeps all.
        minutes: where `most` is 0, one for every so many minutes and the newest; 0 keeps all.

    Attributes:
        kept: oldest first.
        latest: path of the newest one that is safe, "" before the first.
    """

    def __init__(self, config: CheckpointConfig, best_of: int | None, smaller: bool) -> None:
        self._most = config.keep_checkpoint_max if best_of is None else best_of
        self._minutes = config.keep_checkpoint_per_n_minutes if best_of is None else 0
        self._ranked, self._smaller = best_of is not None, smaller
        self._coming: tuple[Saved, Future[Path]] | None = None
        self.kept: list[Saved] = []
        self.latest = ""

    def add(self, saved: Saved, done: "Future[Path]") -> None:
        """A file is on its way."""
        self._coming = saved, done

    def settle(self, wait: bool) -> None:
        """Take note of a file that is safe by now, and let go of those it replaces.

        Args:
            wait: for it to be safe.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._coming is None or not (wait or self._coming[1].done()):
            return
        (saved, done), self._coming = self._coming, None
        try:
            done.result()
        except CancelledError:
            return
        self.latest = saved.path
        self.kept = [one for one in self.kept if one.path != saved.path] + [saved]
        self._prune()

    def worst(self) -> float | None:
        """The value that a new one has to beat; None where there is room."""
        values = [one.value for one in self._all() if one.value is not None]
        values = [value for value in values if not math.isnan(value)]
        if not self._most or len(values) < self._most:
            return None
        return max(values) if self._smaller else min(values)

    def __contains__(self, path: Path) -> bool:
        return any(one.path == str(path) for one in self._all())

    def state_dict(self) -> dict[str, Any]:
        """The files, the one on its way included: the checkpoint that holds this is that one."""
        return {"kept": [list(one) for one in self._all()], "latest": self.latest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the files of an interrupted run."""
        self.kept = [Saved(*one) for one in state["kept"]]
        self.latest = self.kept[-1].path if self.kept else ""

    def _all(self) -> list[Saved]:
        coming = [] if self._coming is None else [self._coming[0]]
        return [*self.kept, *coming]

    def _prune(self) -> None:
        while self._most and len(self.kept) > self._most:
            self._drop(self._last_choice() if self._ranked else 0)
        window = 60.0 * self._minutes
        if not self._most and window and len(self.kept) > 2:
            before, middle = self.kept[-3:-1]
            if middle.at - before.at < window:
                self._drop(len(self.kept) - 2)

    def _last_choice(self) -> int:
        def badness(place: int) -> float:
            value = self.kept[place].value
            if value is None or math.isnan(value):  # of a run that has kept all
                return math.inf
            return value if self._smaller else -value

        return max(range(len(self.kept)), key=badness)

    def _drop(self, place: int) -> None:
        remove(Path(self.kept.pop(place).path))


@contextmanager
def said(error: BaseException | None) -> Iterator[None]:
    """The last saves are taken note of as a run ends.

    Args:
        error: what the run ends with. A save that has failed too must not hide it, and was said in
            the log when it failed.

    Raises:
        Exception: a save has failed, in a run that has not; a `state_dict` may raise anything.
    """
    try:
        yield
    except Exception:
        if error is None:
            raise


def free_prefix(folder: Path, prefix: str) -> str:
    """`prefix`, or with the next free number behind it where files of it are there (MindSpore)."""
    taken = [number for number, _ in _of(folder, prefix)]
    return f"{prefix}_{max(taken) + 1}" if taken else prefix


def resumable(folder: Path, prefix: str) -> list[Path]:
    """Checkpoints of `prefix`, whatever its number, from which a run can be resumed."""
    return [path for _, path in _of(folder, prefix) if path.suffix == ".ckpt"]


def _of(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    pattern = re.compile(
        rf"{re.escape(prefix)}(?:_([0-9]+))?-(?:last|[0-9]+_[0-9]+(?:_breakpoint)?)"
        rf"\.(?:ckpt|safetensors)"
    )
    matches = [(pattern.fullmatch(path.name), path) for path in named(folder)]
    return [(int(match[1] or 0), path) for match, path in matches if match]
