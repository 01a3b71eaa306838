"""The command line `railbus`: what it prints, its exit codes, and what it does not do."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from railbus.bus import Recording
from railbus.bus.folder import being_written
from railbus.bus.tape import Tape
from railbus.schemas.codec import pack
from railbus.schemas.hooks import Hook
from railbus.subscribers import cli
from railbus.subscribers.cli import main

from .recorded import committed, record, repeat
from .scripted import DATA, make_trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def torn(run, tmp_path):
    """The run as a killed process leaves it."""
    folder = tmp_path / "torn"
    tape = Tape(folder, Recording(run).about, "every", {})
    for entry in committed(run)[:30]:
        tape.write(entry)
    tape.close()
    return folder


def railbus(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "railbus.subscribers", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_show_says_how_the_run_ended_and_what_it_was(run, capsys):
    code = main(["show", str(run)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[0] == f"{run.name}: stopped by Notes after step 8 of epoch 2: two are enough"
    facts = dict(line.strip().split(maxsplit=1) for line in lines if line.startswith("  "))
    assert facts["kind"] == "fit, 3 epochs of 4 steps, validated every epoch"
    assert facts["network"] == "Linear"
    assert facts["observers"] == "Recorder"
    assert facts["detached"].endswith(" Fails")
    assert facts["error"].endswith("Fails raised in on_train_step_end #7, on_error='detach'")
    assert f"{len(committed(run))} events" in facts["recorded"]


def test_show_has_a_table_of_callbacks_and_one_of_epochs(run, capsys):
    main(["show", str(run)])

    out = capsys.readouterr().out
    callbacks = [line.split() for line in out.partition("  callbacks")[2].splitlines()[1:4]]
    assert [row[0] for row in callbacks] == ["Notes", "Fails", "Recorder"]
    assert [row[3:] for row in callbacks] == [["0", "1"], ["1", "0"], ["0", "0"]]
    epochs = [line.split() for line in out.partition("  epoch  steps")[2].splitlines()[1:]]
    assert [row[:2] for row in epochs] == [["1", "4"], ["2", "4"]]
    assert [row[3] for row in epochs] == ["0.25", "0.75"]


def test_show_of_many_epochs_leaves_out_those_in_the_middle(tmp_path, capsys):
    make_trainer().train(25, DATA, record=tmp_path)

    main(["show", str(tmp_path)])

    out = capsys.readouterr().out
    epochs = [line.split()[0] for line in out.partition("  epoch  steps")[2].splitlines()[1:]]
    assert epochs == [*map(str, range(1, 11)), "...", *map(str, range(16, 26))]


def test_show_of_a_lone_evaluation_has_its_losses_and_results(tmp_path, capsys):
    make_trainer().eval(DATA, record=tmp_path)

    main(["show", str(tmp_path)])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": completed after 4 steps of evaluation")
    assert "  loss of 4 steps" in lines
    assert lines[-1].split()[:2] == ["eval", "4"]
    assert "mse" in lines[-2].split()


def test_show_plots_with_braille_only_where_it_can_be_shown(run):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    dots = railbus("show", run, env=environment).stdout
    plain = railbus("show", run, env={**environment, "PYTHONIOENCODING": "ascii"}).stdout

    assert any("⠀" < char <= "⣿" for char in dots)
    assert plain.isascii()
    assert "*" in plain


def test_show_of_a_torn_run_says_so_and_verify_gives_1(torn, capsys):
    shown = main(["show", str(torn)])
    out = capsys.readouterr().out
    verified = main(["verify", str(torn)])

    assert (shown, verified) == (0, 1)
    assert "broken off, after step 7 of epoch 2" in out.splitlines()[0]
    assert "its last file was not closed" in out
    assert "30 events right, without the run's end" in capsys.readouterr().out


def test_recover_closes_a_torn_run_once(torn, capsys):
    first = main(["recover", str(torn)])
    told = capsys.readouterr().out
    second = main(["recover", str(torn)])

    assert (first, second) == (0, 0)
    assert "30 events kept, its writer did not close it" in told
    assert capsys.readouterr().out == "nothing to recover: every file was closed and is right\n"
    assert len(committed(torn)) == 30


def test_show_of_damage_tells_what_was_right_before_it_and_gives_2(run, tmp_path, capsys):
    (segment,) = Recording(run).files
    data = segment.read_bytes()
    middle = len(data) * 2 // 3
    bad = tmp_path / segment.name
    bad.write_bytes(data[:middle] + bytes(4) + data[middle + 4 :])

    codes = main(["show", str(bad)]), main(["verify", str(bad)])

    shown = capsys.readouterr()
    assert codes == (2, 2)
    assert "broken off" in shown.out
    assert [line[:16] for line in shown.err.splitlines()] == ["railbus: error: "] * 2


def test_events_are_picked_by_hook_and_place(run, capsys):
    main(["events", str(run), "--hook", "on_train_step_end", "--hook", "on_train_end"])
    steps = capsys.readouterr().out.splitlines()
    main(["events", str(run), "--epoch", "2", "--limit", "2"])
    second = capsys.readouterr().out.splitlines()
    main(["events", str(run), "--seq", "3", "--limit", "1"])

    assert len(steps) == 9
    assert "on_train_step_end     epoch 1 step 1" in steps[0]
    assert "loss " in steps[0]
    assert "Notes sets tenfold" in steps[0]
    assert "Fails raised ValueError: bad luck" in steps[2]
    assert steps[-1].endswith("stopped: two are enough")
    assert len(second) == 2
    assert "on_train_epoch_begin" in second[0]
    assert capsys.readouterr().out.startswith("#3 ")


def test_events_as_json_are_one_object_a_line(run, capsys):
    main(["events", str(run), "--json", "--hook", "on_train_epoch_end"])

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines[1]["decision"]["stops"][0]["by"] == "Notes"


def test_events_follow_ends_with_the_run(run, capsys):
    main(["events", str(run), "--follow", "--hook", "on_train_end"])

    assert "stopped: two are enough" in capsys.readouterr().out


def test_events_of_a_run_under_way_are_followed_as_they_are_written(run, tmp_path):
    tape = Tape(tmp_path, Recording(run).about, "every", {})
    entries = committed(run)
    tape.write(entries[0])
    command = [sys.executable, "-m", "railbus.subscribers", "events", str(tmp_path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        written = being_written(Recording(tmp_path).files[-1])
        for entry in entries[1:]:
            tape.write(entry)
        tape.seal()
        rest = process.stdout.readlines()

    assert written
    assert first.startswith("#0 ")
    assert len(rest) == len(entries) - 1
    assert process.returncode == 0


def test_export_writes_a_file_once(run, tmp_path, capsys):
    target = tmp_path / "run.csv"
    codes = [
        main(["export", str(run), "--to", "csv", "--output", str(target), *more])
        for more in ([], [], ["--force"])
    ]

    told = capsys.readouterr()
    assert codes == [0, 2, 0]
    assert told.out == f"{target}\n" * 2
    assert told.err == (f"railbus: error: '{target}' is there already; force replaces it\n")
    assert len(target.read_text().splitlines()) == 1 + 8 + 8 + 2 + 2


def test_a_directory_with_one_run_stands_for_it(run, capsys):
    code = main(["verify", str(run.parent)])

    assert code == 0
    assert capsys.readouterr().out.startswith(f"{run.name}/0: ")


def test_a_directory_with_several_runs_asks_for_one_newest_first(run, tmp_path, capsys):
    names = [make_trainer().train(1, DATA, record=tmp_path).run_id for _ in range(2)]
    os.utime(tmp_path / names[0], (1, 1))

    code = main(["show", str(tmp_path)])

    told = capsys.readouterr().err
    assert code == 2
    assert told == (
        f"railbus: error: '{tmp_path}' holds 2 runs, name one: "
        f"'{tmp_path / names[1]}', '{tmp_path / names[0]}'\n"
    )


@pytest.mark.parametrize("command", ["show", "events", "verify", "recover"])
def test_a_path_without_a_recording_is_an_error_in_one_line(tmp_path, capsys, command):
    codes = [main([command, str(path)]) for path in (tmp_path, tmp_path / "none")]

    told = capsys.readouterr().err.splitlines()
    assert codes == [2, 2]
    assert len(told) == 2
    assert all(line.startswith("railbus: error: there is no recording in") for line in told)


def test_wrong_arguments_are_an_error_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["events", "run", "--hook", "on_lunch"])

    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("railbus: error: argument --hook: invalid choice: 'on_lunch'")
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "events", "export", "verify", "recover"])
def test_every_command_has_help_with_examples(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert ended.value.code == 0
    assert f"examples:\n  railbus {command} " in capsys.readouterr().out


def test_a_recording_cannot_act_on_the_terminal(run, tmp_path, capsys):
    source = Recording(run)
    about = msgspec.structs.replace(source.about, run_id="\x1b[2Jgone\nrailbus: all is well")
    tape = Tape(tmp_path, about, "lifecycle", {})
    event = msgspec.structs.replace(committed(run)[0].event, run_id=about.run_id)
    tape.write(msgspec.structs.replace(committed(run)[0], event=event))
    tape.seal()

    main(["show", str(tmp_path)])

    assert capsys.readouterr().out.startswith("\\x1b[2Jgone\\nrailbus: all is well: broken off")


@pytest.mark.parametrize("snapshot", [pack([1, 2]), b"\xc1"])
def test_a_snapshot_that_is_none_is_an_error_in_one_line(run, tmp_path, capsys, snapshot):
    entry = committed(run, {Hook.TRAIN_STEP_END})[0]
    event = msgspec.structs.replace(entry.event, snapshot=snapshot, seq=0)
    tape = Tape(tmp_path, Recording(run).about, "lifecycle", {})
    decision = msgspec.structs.replace(entry.decision, seq=0, patches=())
    tape.write(msgspec.structs.replace(entry, event=event, decision=decision, acks=()))
    tape.seal()

    codes = [main([name, str(tmp_path)]) for name in ("events", "show", "verify")]

    told = capsys.readouterr().err.splitlines()
    assert codes == [2, 2, 2]
    assert all(line.startswith("railbus: error: ") for line in told)


def test_a_reader_that_leaves_is_no_error(run):
    command = [sys.executable, "-m", "railbus.subscribers", "events", str(run), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()

    assert (process.returncode, told) == (141, b"")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(run, closed):
    command = f"'{sys.executable}' -m railbus.subscribers show '{run}' {closed}"

    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_directory_is_no_file_to_export_to(run, capsys):
    code = main(["export", str(run), "--to", "csv", "--output", ".", "--force"])

    assert code == 2
    assert capsys.readouterr().err == (
        "railbus: error: '.' is a directory, expected the name of a file\n"
    )


def test_an_interrupt_ends_it_quietly_with_130(run, tmp_path):
    tape = Tape(tmp_path, Recording(run).about, "every", {})
    tape.write(committed(run)[0])
    command = [sys.executable, "-m", "railbus.subscribers", "events", str(tmp_path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    tape.close()

    assert (process.returncode, told) == (130, b"")


def test_the_console_script_is_there_and_needs_no_jax(run):
    script = Path(sys.executable).with_name("railbus")
    code = (
        "import sys; from railbus.subscribers.cli import main\n"
        f"main(['show', {str(run)!r}]); print('jax' in sys.modules)"
    )

    done = subprocess.run([script, "verify", run], capture_output=True, text=True)
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert "events right, whole" in done.stdout
    assert loaded.stdout.splitlines()[-1] == "False"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "stream, told", [(Terminal, "\r256 events read\r" + " " * 40 + "\r"), (io.StringIO, "")]
)
def test_progress_is_told_to_a_terminal_only(run, tmp_path, capsys, monkeypatch, stream, told):
    repeat(run, tmp_path, 300)
    monkeypatch.setattr(cli, "TOLD_AFTER", 0.0)
    monkeypatch.setattr(sys, "stderr", stderr := stream())

    main(["show", str(tmp_path)])

    assert stderr.getvalue() == told
