"""Recorded runs that are killed: `python killed.py` forks one for each line that it reads.

A line names a folder, a flush policy and milliseconds that each 16th event takes. A participant
writes into a file what it sees of each event, which the kill leaves as it is. Forked, since an
interpreter takes longer to start than such a run to be killed.
"""

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from railbus.bus import Recording, recover
from railbus.schemas import Gap, Plan
from railbus.schemas.errors import RailbusError
from railbus.subscribers import Callback, Recorder

POLICIES: dict[str, Callable[[int, float], bool]] = {
    "lifecycle": lambda lost, seconds: lost <= 64 or seconds <= 1.0,
    "every": lambda lost, seconds: lost <= 1,
    "durable": lambda lost, seconds: lost <= 0,
}
PLAN = Plan(mode="train", epochs=200, batch_num=50, valid_batch_num=5, valid_frequency=2)
ROWS = 100_000
_ROW = struct.Struct("<dII")  # when, checksum of the snapshot, whether it is there


class Killed(msgspec.Struct):
    """What a killed run has left behind; events are (seq, checksum of the snapshot).

    All that were `seen` but the last are certainly committed, that one may be.
    """

    seen: list[tuple[int, int]]
    times: list[float]
    read: list[tuple[int, int]]
    recovered: list[tuple[int, int]]
    error: Exception | None

    @property
    def lost(self) -> tuple[int, float]:
        """How many committed events are missing, and in how many seconds they were committed."""
        certain = len(self.seen) - 1
        count = certain - len(self.read)
        return count, self.times[certain - 1] - self.times[len(self.read)] if count > 0 else 0.0


class Killer:
    """Starts runs and kills them, each at another moment."""

    def __init__(self, folder: Path, flush: str, command: str = __file__) -> None:
        self._folder, self._flush = folder, flush
        self._process = subprocess.Popen(
            [sys.executable, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def kill(self, number: int, longest: float = 0.25) -> Killed:
        """One run; those with an odd number are slow."""
        folder = self._folder / str(number)
        folder.mkdir()
        self._ask(folder, number % 2 * 4)
        child = int(self._told())
        assert self._told() == "begun"
        threading.Event().wait(random.Random(number).uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        assert self._told() == "over"
        return found(folder)

    def _ask(self, folder: Path, pause: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder} {self._flush} {pause}\n")
        self._process.stdin.flush()

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def found(folder: Path) -> Killed:
    """What is in a killed run's folder, before and after it is recovered."""
    data = (folder / "seen").read_bytes()
    rows = [row for row in _ROW.iter_unpack(data) if row[2]]
    seen = [(seq, row[1]) for seq, row in enumerate(rows)]
    read, error = _read(folder / "run")
    recover_if_any(folder / "run")
    recovered, again = _read(folder / "run")
    return Killed(seen, [row[0] for row in rows], read, recovered, error or again)


def recover_if_any(path: Path) -> None:
    if any((path / "events").iterdir()):
        recover(path)


def _read(path: Path) -> tuple[list[tuple[int, int]], Exception | None]:
    read: list[tuple[int, int]] = []
    if not any((path / "events").glob("*.mcap")):
        return read, None
    try:
        for entry in Recording(path):
            assert not isinstance(entry, Gap)
            read.append((entry.event.seq, zlib.crc32(entry.event.snapshot)))
    except RailbusError as error:
        return read, None if "breaks off before" in str(error) else error
    return read, None


class Witness(Callback):
    """The last of the list: writes down what it sees, where a kill does not reach it."""

    def __init__(self, path: Path, pause: int) -> None:
        path.write_bytes(b"")
        os.truncate(path, ROWS * _ROW.size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._pause = pause / 1000
        self._slow = threading.Event()

    def _see(self, run_context: Any) -> None:
        event = run_context.event
        row = (time.monotonic(), zlib.crc32(event.snapshot), 1)
        _ROW.pack_into(self._map, event.seq * _ROW.size, *row)
        if event.seq == 0:
            os.write(1, b"begun\n")
        if self._pause and event.seq % 16 == 0:
            self._slow.wait(self._pause)

    on_train_begin = on_train_epoch_begin = on_train_step_begin = on_train_step_end = _see
    on_train_epoch_end = on_train_end = on_eval_begin = on_eval_epoch_begin = _see
    on_eval_step_begin = on_eval_step_end = on_eval_epoch_end = on_eval_end = _see


def attempt(folder: Path, flush: Any, pause: int) -> None:
    """One run."""
    from tests.semantics.synthetic import play

    recorder = Recorder(folder, flush)
    recorder.claim("run", 0)
    play([Witness(folder / "seen", pause), recorder], PLAN)


def serve(attempt: Callable[[Path, Any, int], None]) -> None:
    """Fork an attempt for each line; tell its number, and when it is over."""
    for line in sys.stdin:
        folder, flush, pause = line.split()
        child = os.fork()
        if child == 0:
            try:
                attempt(Path(folder), flush, int(pause))
            finally:
                os._exit(0)
        os.write(1, f"{child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"over\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import tests.semantics.synthetic  # noqa: F401  # it would be imported in each attempt

    serve(attempt)
