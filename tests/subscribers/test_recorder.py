"""`Recorder`: what it refuses, what it writes beside events, and what a full disk does to a run."""

import errno
import logging
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from railbus.bus import EventBus, Recording, recover
from railbus.bus.tape import Tape
from railbus.schemas import Plan
from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.subscribers import Callback, CheckpointConfig, ModelCheckpoint, Recorder
from tests.bus.recorded import events
from tests.semantics.synthetic import play

from .scripted import DATA, make_trainer

PLAN = Plan(mode="train", epochs=2, batch_num=5, valid_batch_num=2, valid_frequency=1)


def record(recorder: Recorder, callbacks=(), plan: Plan = PLAN):
    recorder.claim("run", 0)
    return play([*callbacks, recorder], plan)


@pytest.mark.parametrize("flush", ["lifecycle", "every", "durable"])
def test_a_recorded_run_is_the_committed_log(flush, tmp_path):
    played = record(Recorder(tmp_path, flush))

    recording = Recording(tmp_path / "run")
    assert list(recording) == played.log
    report = recording.verify()
    assert report.sealed and report.ended and report.events == len(played.log)
    assert {"versions", "git", "device"} <= set(recording.notes)


@pytest.mark.parametrize("wrong", [{"flush": "never"}, {"on_error": "ignore"}])
def test_wrong_arguments_are_refused(wrong, tmp_path):
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        play([Recorder(tmp_path, **wrong)], PLAN)


def test_a_wrong_directory_is_refused(tmp_path):
    with pytest.raises(ArgumentTypeError):
        Recorder(5)  # type: ignore[arg-type]  # it is what is tested
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot record"):
        Recorder(tmp_path / "file").claim("run", 0)


def test_a_directory_that_holds_a_run_of_that_name_is_refused(tmp_path):
    trainer = make_trainer()
    trainer.train(1, DATA, record=tmp_path, run_id="one")
    with pytest.raises(ArgumentError, match="already"):
        trainer.train(1, DATA, record=tmp_path, run_id="one")
    trainer.train(1, DATA, record=tmp_path, run_id="two")

    assert Recording(tmp_path / "two").about.run_id == "two"


def test_an_evaluation_and_a_failed_run_are_recorded_to_their_ends(tmp_path):
    class Failing(Callback):
        def on_train_step_end(self, run_context):
            raise RuntimeError("bad luck \udcff")

    trainer = make_trainer()
    trainer.eval(DATA, record=tmp_path, run_id="eval")
    with pytest.raises(RuntimeError):
        trainer.train(1, DATA, [Failing()], record=tmp_path, run_id="failed")

    for name in ("eval", "failed"):
        report = Recording(tmp_path / name).verify()
        assert report.sealed and report.ended


def test_an_error_whose_text_no_file_can_hold_is_recorded_all_the_same(tmp_path):
    class Failing(Callback):
        on_error = "detach"

        def on_train_step_end(self, run_context):
            raise RuntimeError("bad luck \udcff")

    record(Recorder(tmp_path), [Failing()])

    report = Recording(tmp_path / "run").verify()
    assert report.ended
    lines = [one.message for one in Recording(tmp_path / "run").log()]
    assert any("Failing raised" in line for line in lines)


def test_each_process_that_carries_a_run_on_is_an_incarnation(tmp_path):
    class Interrupt(Callback):
        def __init__(self, step: int) -> None:
            self.step = step

        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == self.step:
                raise RuntimeError("killed")

    runs, kept = tmp_path / "runs", tmp_path / "kept"
    for step in (5, 8, 1000):
        saving = ModelCheckpoint("net", kept, CheckpointConfig(2))
        trainer = make_trainer()
        try:
            trainer.fit(
                3,
                DATA,
                DATA,
                1,
                [saving, Interrupt(step)],
                resume="latest",
                run_id="run",
                record=runs,
            )
        except RuntimeError as error:
            assert str(error) == "killed"

    last = Recording(runs / "run")
    assert last.incarnations == (0, 1, 2)
    assert last.incarnation == last.about.incarnation == 2
    assert Recording(runs / "run", 0).about.plan.resumed is None
    for number in last.incarnations:
        report = Recording(runs / "run", number).verify()
        assert (report.incarnation, report.sealed, report.ended) == (number, True, True)
    with pytest.raises(ArgumentError, match="incarnation must be one of"):
        Recording(runs / "run", 3)


def test_runs_beside_one_another_are_recorded_each_in_its_own_directory(tmp_path):
    class Nested(Callback):
        def on_train_epoch_end(self, run_context):
            make_trainer().train(1, DATA, record=tmp_path, run_id="inner")

    make_trainer().train(1, DATA, [Nested()], record=tmp_path, run_id="outer")

    inner, outer = Recording(tmp_path / "inner"), Recording(tmp_path / "outer")
    assert inner.verify().ended and outer.verify().ended
    assert {one.run_id for one in events(inner)} == {"inner"}


def test_one_recorder_does_not_write_two_runs_at_once(tmp_path):
    recorder = Recorder(tmp_path)

    class Nested(Callback):
        def on_train_epoch_end(self, run_context):
            with pytest.raises(ArgumentError, match="is at work on the run in"):
                make_trainer().train(1, DATA, recorder, run_id="inner")

    make_trainer().train(1, DATA, [Nested(), recorder], run_id="outer")

    assert Recording(tmp_path / "outer").verify().ended


def test_two_recorders_of_a_run_need_two_directories(tmp_path):
    with pytest.raises(ArgumentError, match="two Recorders of this run write into"):
        make_trainer().train(1, DATA, Recorder(tmp_path), record=tmp_path)

    make_trainer().train(1, DATA, Recorder(tmp_path / "a"), record=tmp_path / "b", run_id="run")
    for name in ("a", "b"):
        assert Recording(tmp_path / name / "run").verify().ended


def test_without_git_a_recording_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    record(Recorder(tmp_path))

    assert Recording(tmp_path / "run").notes["git"] == {}


def test_log_lines_stand_where_they_were_said(tmp_path):
    class Saying(Callback):
        def on_train_epoch_begin(self, run_context):
            logging.getLogger("railbus.test").warning("said \udcff in %s", "vain")

    recorder = Recorder(tmp_path, "durable")
    record(recorder, [Saying()])

    log = Recording(tmp_path / "run").log()
    lines = [line for line in log if line.logger == "railbus.test"]
    assert [line.message for line in lines] == ["said \\udcff in vain"] * 2
    begun = Recording(tmp_path / "run").entries({"on_train_epoch_begin"})
    begins = [one.seq for one in events(begun)]
    assert [line.seq for line in lines] == begins
    assert not [one for one in logging.getLogger("railbus").handlers if "Lines" in str(type(one))]


class FullDisk(Recorder):
    """A recorder whose disk is full after so many events."""

    room = 7

    def set_up(self, about):
        super().set_up(about)
        assert self.path is not None
        self._tape = _Full(self.path, about, self.flush, {})
        self._tape.room = self.room


class _Full(Tape):
    room = 7

    def write(self, item):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(item)


@pytest.mark.parametrize("policy", ["detach", "stop", "raise"])
@pytest.mark.parametrize("room", [0, 1, 20, 37])
def test_a_full_disk_is_one_alarm_and_what_the_policy_says(policy, room, tmp_path, caplog):
    recorder = FullDisk(tmp_path, "durable", on_error=policy)
    recorder.room = room
    played = record(recorder)

    alarms = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(alarms) == 1 and "No space left" in str(alarms[0].exc_info)
    assert isinstance(played.error, OSError) == (policy == "raise")
    assert played.params["status"] == ("completed" if policy == "detach" else "stopped")
    assert policy == "detach" or played.params["stop_at"] == room + 1
    if room:
        recover(tmp_path / "run")
        assert list(Recording(tmp_path / "run")) == played.log[:room]


LIMITED = """
import logging, resource, signal, sys
from railbus.schemas import Plan
from railbus.subscribers import Recorder
from tests.semantics.synthetic import play
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
recorder = Recorder(sys.argv[1])
recorder.claim("run", 0)
logging.basicConfig(format="ALARM %(message)s")
played = play([recorder], Plan(mode="train", epochs=20, batch_num=50))
print(played.params["status"], len(played.log))
"""


@pytest.mark.parametrize("size", [10, 2000, 9000])
def test_a_file_that_the_system_lets_not_grow_ends_the_recording_and_not_the_run(size, tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(size)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["completed", "2042"]
    assert done.stderr.count("ALARM") == 1 and "File too large" in done.stderr
    recover(tmp_path / "run")
    left = list((tmp_path / "run" / "events").glob("*.mcap"))
    if size == 9000:
        found = events(Recording(tmp_path / "run"))
        assert [one.seq for one in found] == list(range(len(found))) and found
    assert len(left) == (size == 9000)
    assert signal.SIGXFSZ and resource.RLIMIT_FSIZE


def test_an_observer_beside_sees_the_run_as_if_it_were_not_recorded(tmp_path):
    bus = EventBus()
    observer = bus.observe(run_id="run")
    recorder = Recorder(tmp_path)
    recorder.claim("run", 0)
    played = play([recorder], PLAN, bus)

    assert list(observer) == [one.event for one in played.log]
