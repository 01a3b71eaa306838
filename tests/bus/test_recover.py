"""Recovering recordings: whose files it may touch, and what it keeps."""

import os

import pytest

from railbus.bus import Recording, recover
from railbus.bus.tape import Tape
from railbus.schemas.errors import RecordingError

from .recorded import ABOUT, NOTES, entries, entry, sample, write


def test_a_recording_that_is_whole_is_left_alone(tmp_path):
    files = Recording(write(tmp_path, sample(), rotate=(4,))).files
    before = [one.stat() for one in files]

    assert recover(tmp_path) == []
    assert [(one.stat().st_ino, one.stat().st_mtime_ns) for one in files] == [
        (one.st_ino, one.st_mtime_ns) for one in before
    ]


def test_a_file_that_is_still_being_written_is_refused(tmp_path):
    tape = Tape(tmp_path, ABOUT, "every", NOTES)
    tape.write(entry(0))
    with pytest.raises(RecordingError, match="still being written"):
        recover(tmp_path)
    tape.close()

    assert [one.events for one in recover(tmp_path)] == [1]


def test_what_follows_missing_events_is_put_aside(tmp_path):
    recording = Recording(write(tmp_path, sample(), rotate=(4, 8)))
    second = recording.files[1]
    os.truncate(second, second.stat().st_size // 6)

    done = recover(tmp_path)

    assert [one.path.name for one in done] == ["000-00000005.mcap", "000-00000009.mcap"]
    assert all(one.torn.exists() for one in done)
    found = list(recording)
    assert found == entries(sample())[: len(found)] and len(found) >= 5


def test_a_second_damage_does_not_overwrite_the_first_original(tmp_path):
    recording = Recording(write(tmp_path, sample(), sealed=False))
    (first,) = recover(tmp_path)
    torn = first.torn.read_bytes()
    path = recording.files[0]
    os.truncate(path, path.stat().st_size - 30)
    damaged = path.read_bytes()

    (second,) = recover(tmp_path)

    assert first.torn.read_bytes() == torn
    assert second.torn.read_bytes() == damaged
    assert second.torn != first.torn


def test_a_damaged_index_is_made_anew(tmp_path):
    recording = Recording(write(tmp_path, sample()))
    path = recording.files[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"railbus-index") + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError):
        list(recording.entries(seq=9))

    recover(tmp_path)

    assert list(recording.entries(seq=9)) == entries(sample())[9:]
    assert list(recording.log())


def test_a_note_that_is_damaged_is_left_out_and_said(tmp_path, caplog):
    recording = Recording(write(tmp_path, sample()))
    path = recording.files[0]
    path.write_bytes(path.read_bytes().replace(b"abc", b"abd", 1))

    damaged = Recording(tmp_path)

    assert damaged.notes == {"versions": NOTES["versions"]}
    assert "note 'git' is damaged" in caplog.text
    assert list(damaged) == entries(sample())
    recover(tmp_path)
    assert Recording(tmp_path).verify().sealed


def test_where_nothing_ever_was_there_is_nothing_to_recover(tmp_path):
    with pytest.raises(RecordingError, match="there is no recording"):
        recover(tmp_path)
