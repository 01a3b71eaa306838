"""`railbus replay` and `railbus diff`."""

import json
import sys

import msgspec
import pytest

from railbus.bus import Recording
from railbus.bus.tape import Tape
from railbus.schemas.codec import pack
from railbus.subscribers.cli import main

from .recorded import committed, record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs"))


def altered(run, directory, seq, **values):
    """A copy of the run with other values in the snapshot of one event."""
    tape = Tape(directory, Recording(run).about, "lifecycle", {})
    for entry in committed(run):
        if entry.event.seq == seq:
            snapshot = pack({**entry.event.cb_params, **values})
            event = msgspec.structs.replace(entry.event, snapshot=snapshot)
            entry = msgspec.structs.replace(entry, event=event)
        tape.write(entry)
    tape.seal()
    return directory


def test_a_replay_prints_what_callbacks_print_and_what_they_ask_for(run, capsys):
    names = ["LossMonitor(4)", "StopAtStep(8)"]
    code = main(["replay", str(run), "--callback", names[0], "--callback", names[1]])

    out = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line[:16] for line in out[:1]] == ["epoch: 1 step: 4"]
    assert "Eval result: epoch 1, metrics: {'accuracy': 0.25}" in out
    assert any("on_train_step_end  StopAtStep asks to stop (step 8 has ended)" in x for x in out)
    assert out[-1] == f"31 acks to {len(committed(run))} events"


def test_a_replay_as_json_has_every_ack_and_then_the_rest(run, capsys):
    main(["replay", str(run), "--callback", "LossMonitor(4)", "--json", "--until", "on_train_end"])

    *acks, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {ack["by"] for ack in acks} == {"LossMonitor"}
    assert [ack["seq"] for ack in acks] == sorted(ack["seq"] for ack in acks)
    assert last["lines"][0].startswith("epoch: 1 step: 4, loss is ")
    assert (last["stop"], last["diverged"]) == (None, None)


def test_a_replay_ends_after_the_event_that_until_names(run, capsys):
    main(["replay", str(run), "--callback", "LossMonitor(0)", "--until", "5"])

    assert capsys.readouterr().out.endswith(" acks to 6 events\n")


@pytest.mark.parametrize("hook", ["on_train_begin(self, run_context)", "__enter__(self)"])
def test_a_callback_that_raises_in_a_replay_is_an_error_in_one_line(
    run, tmp_path, monkeypatch, capsys, hook
):
    (tmp_path / "raising_callback.py").write_text(
        "from railbus.subscribers import Callback\n"
        "class Raises(Callback):\n"
        f"    def {hook}:\n"
        "        raise ValueError('bad luck')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "raising_callback", raising=False)

    code = main(["replay", str(run), "--callback", "raising_callback:Raises"])

    assert code == 2
    assert capsys.readouterr().err == (
        "railbus: error: a callback has raised ValueError: bad luck\n"
    )


def test_a_callback_that_cannot_be_made_is_an_error_in_one_line(run, capsys):
    code = main(["replay", str(run), "--callback", "EarlyStopping(patience=-1)"])

    assert code == 2
    assert capsys.readouterr().err == "railbus: error: patience must be at least 0, got -1\n"


def test_a_run_does_not_differ_from_itself(run, capsys):
    code = main(["diff", str(run), str(run)])

    assert (code, capsys.readouterr().out) == (0, "no difference\n")


def test_the_first_difference_of_two_runs_is_shown_with_what_is_around_it(run, tmp_path, capsys):
    other = altered(run, tmp_path, 5, limit=2.0)

    code = main(["diff", str(run), str(other), "--context", "1"])

    out = capsys.readouterr().out.splitlines()
    assert code == 1
    assert out[0].startswith("#5 on_train_step_end cb_params.limit: expected ")
    assert len(out) == 1 + 2 * (1 + 3)


def test_differences_within_a_tolerance_or_of_an_ignored_key_do_not_count(run, tmp_path, capsys):
    rate = committed(run)[3].event.cb_params["learning_rate"]
    other = altered(run, tmp_path, 3, learning_rate=rate + type(rate)(1e-6))
    command = ["diff", str(run), str(other)]

    codes = [
        main([*command, *more])
        for more in (
            [],
            ["--tolerance", "learning_rate=1e-5"],
            ["--tolerance", "learning_rate=1e-7"],
            ["--ignore", "learning_rate"],
        )
    ]

    assert codes == [1, 0, 1, 0]


def test_a_diff_with_nothing_is_an_error(run, tmp_path, capsys):
    code = main(["diff", str(run), str(tmp_path / "none")])

    assert code == 2
    assert capsys.readouterr().err.startswith("railbus: error: there is no recording in ")


def test_a_tolerance_without_a_number_is_refused(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(run), str(run), "--tolerance", "net_outputs"])

    assert ended.value.code == 2
    assert "expected KEY=NUMBER, got 'net_outputs'" in capsys.readouterr().err


def test_every_one_has_help_with_examples(capsys):
    for command in ("diff", "replay"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert f"examples:\n  railbus {command} " in capsys.readouterr().out
