"""Writing recordings: when a file ends, and what becomes of one that the disk has no room for."""

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from railbus.bus import Recording, recover
from railbus.bus.segment import LogLine
from railbus.bus.tape import Tape
from railbus.schemas import Gap
from railbus.schemas.errors import RecordingError
from railbus.schemas.events import Committed

from .recorded import ABOUT, NOTES, entries, entry, readable, sample, write


class Full:
    """A file on a disk that takes so many writes, flushes and syncs, over all files together."""

    def __init__(self, file, left: list[int]) -> None:
        self._file, self._left = file, left

    def _spend(self) -> None:
        self._left[0] -= 1
        if self._left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, data: bytes):
        self._spend()
        return self._file.write(data)

    def flush(self) -> None:
        self._spend()
        self._file.flush()

    def fileno(self):
        self._spend()
        return self._file.fileno()

    def __getattr__(self, name: str):
        return getattr(self._file, name)


class FullTape(Tape):
    """A tape on such a disk."""

    left = [10**9]

    def open(self, path: Path):
        return Full(path.open("xb", buffering=0), self.left)


def fill(folder: Path, operations: int, flush) -> bool:
    """Write the sample as far as there is room; whether there was room for all."""
    tape = FullTape(folder, ABOUT, flush, NOTES)
    tape.left = [operations]
    try:
        for item in sample():
            tape.write(item)
            if isinstance(item, Committed) and item.event.seq == 6:
                tape.seal()
        tape.seal()
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return False
    finally:
        tape.close()
    return True


@pytest.mark.parametrize("flush", ["lifecycle", "every", "durable"])
def test_a_disk_that_is_full_at_any_operation_leaves_a_prefix_that_can_be_recovered(
    flush, tmp_path, monkeypatch
):
    monkeypatch.setattr("fcntl.flock", lambda *_: None)  # it asks for the descriptor, too
    operations, whole = 0, False
    while not whole:
        folder = tmp_path / str(operations)
        whole = fill(folder, operations, flush)
        operations += 1
        if not any(folder.rglob("*.mcap")):
            continue
        recover(folder)
        if not any(folder.rglob("*.mcap")):
            continue
        found, error = readable(Recording(folder))

        assert error is None
        assert found == entries(sample())[: len(found)]
        assert Recording(folder).verify().sealed
    assert operations > 20
    assert found == entries(sample())


class LockedTape(Tape):
    """A tape whose new file somebody else has locked, for the first so many seconds."""

    def open(self, path: Path):
        file = super().open(path)
        self.other = path.open("rb")
        fcntl.flock(self.other, fcntl.LOCK_SH)
        if self.seconds is not None:
            threading.Timer(self.seconds, self.other.close).start()
        return file

    seconds: float | None = None


@pytest.mark.parametrize(("seconds", "warnings"), [(0.05, 0), (None, 1)])
def test_who_looks_at_a_new_files_lock_does_not_end_the_recording(
    seconds, warnings, tmp_path, caplog
):
    tape = LockedTape(tmp_path, ABOUT, "every", NOTES)
    tape.seconds = seconds
    tape.write(entry(0))
    tape.seal()
    tape.other.close()

    assert list(Recording(tmp_path)) == [entry(0)]
    assert len([one for one in caplog.messages if one.startswith("cannot lock")]) == warnings


def test_a_file_ends_at_its_size_and_the_next_goes_on(tmp_path):
    tape = Tape(tmp_path, ABOUT, "every", NOTES, rotate_bytes=20_000)
    items = [entry(seq, size=3000) for seq in range(20)]
    for number, item in enumerate(items):
        item = entry(number, size=3000 + 100 * number)
        items[number] = item
        tape.write(item)
    tape.seal()

    recording = Recording(tmp_path)
    assert list(recording) == items
    assert all(one.stat().st_size < 40_000 for one in recording.files)


def test_a_file_ends_at_its_age(tmp_path):
    tape = Tape(tmp_path, ABOUT, "every", NOTES, rotate_seconds=-1.0)
    for item in entries(sample()):
        tape.write(item)
    tape.seal()

    recording = Recording(tmp_path)
    assert list(recording) == entries(sample())
    assert len(recording.files) == sum(isinstance(one, Committed) for one in sample())


def test_a_log_line_right_after_a_file_was_closed_goes_into_the_next_one(tmp_path):
    line = LogLine(seq=0, wall_ns=1, level="ERROR", logger="railbus", message="late")
    folder = write(tmp_path, [entry(0), line, entry(1), line], rotate=(0, 1))

    assert list(Recording(folder)) == [entry(0), entry(1)]
    assert list(Recording(folder).log()) == [line, line]


def test_what_is_too_large_to_be_read_back_is_refused_and_the_rest_is_right(tmp_path):
    tape = Tape(tmp_path, ABOUT, "every", NOTES)
    tape.write(entry(0))
    with pytest.raises(RecordingError, match="too large"):
        tape.write(LogLine(seq=1, wall_ns=1, level="INFO", logger="railbus", message="x" * 2**24))
    tape.close()

    assert list(Recording(tmp_path)) == [entry(0)]


def test_large_decisions_end_a_chunk_as_large_snapshots_do(tmp_path):
    items = [one for one in sample() if isinstance(one, Committed) and one.acks][:1]
    assert items
    patch = {"own": b"\xc4" + bytes(400_000)}
    first = items[0]
    acks = tuple(type(ack)(**{**_fields(ack), "patch": patch}) for ack in first.acks)
    entries_ = []
    for seq in range(60):
        plain = entry(seq)
        entries_.append(
            Committed(plain.event, plain.decision, tuple(_at(a, seq, plain) for a in acks))
        )
    folder = write(tmp_path, entries_)

    assert list(Recording(folder)) == entries_


def _fields(ack):
    return {name: getattr(ack, name) for name in ack.__struct_fields__}


def _at(ack, seq, plain):
    return type(ack)(**{**_fields(ack), "seq": seq, "hook": plain.event.hook})


def test_a_gap_moves_the_name_of_the_next_file(tmp_path):
    gap = Gap(run_id="run", first=1, last=7, reason="retention")
    tape = Tape(tmp_path, ABOUT, "every", NOTES)
    for item in (entry(0), gap):
        tape.write(item)
    tape.seal()
    tape.write(entry(8))
    tape.seal()

    assert Recording(tmp_path).files[1].name == "000-00000008.mcap"
    assert list(Recording(tmp_path)) == [entry(0), gap, entry(8)]
