"""What callbacks have cost, in a recording."""

import msgspec
import pytest

from railbus.bus import Recording
from railbus.bus.tape import Tape
from railbus.schemas.errors import RecordingError
from railbus.subscribers import LossMonitor
from railbus.subscribers.participant import Tally
from railbus.subscribers.tallies import line_of, tallies_of

from .scripted import DATA, make_trainer


def test_a_recording_tells_what_each_callback_has_cost(tmp_path):
    result = make_trainer().train(2, DATA, callbacks=LossMonitor(0), record=tmp_path)

    found = tallies_of(Recording(tmp_path / result.run_id).log())
    assert found.keys() == {"LossMonitor", "Recorder"}
    assert found["LossMonitor"] == result.stats.callbacks["LossMonitor"]
    assert found["LossMonitor"].events > 0


def test_a_run_that_was_cut_off_has_none():
    assert tallies_of([]) == {}


def test_a_line_that_holds_something_else_is_refused():
    line = msgspec.structs.replace(line_of({}, 0), message="[1]")

    with pytest.raises(RecordingError, match="tallies cannot be read"):
        tallies_of([line])


def test_tallies_after_a_file_was_just_closed_begin_the_next_one(tmp_path):
    result = make_trainer().train(1, DATA, record=tmp_path)
    source = Recording(tmp_path / result.run_id)
    tape = Tape(tmp_path / "short", source.about, "lifecycle", {}, rotate_bytes=1)
    entries = list(source)

    for entry in entries:
        tape.write(entry)
    tape.write(line_of({"One": Tally(events=3)}, len(entries)))
    tape.seal()

    read = Recording(tmp_path / "short")
    assert list(read) == entries
    assert tallies_of(read.log()) == {"One": Tally(events=3)}
    assert read.verify().sealed
