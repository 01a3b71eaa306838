"""`export`: every format holds what the recording holds."""

import csv
import json
import math
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from railbus.bus import Recording
from railbus.schemas.errors import ArgumentError, RecordingError
from railbus.schemas.hooks import Hook
from railbus.subscribers import export
from railbus.subscribers.readings import loss_of

from .recorded import committed, record, repeat


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs"))


def losses_of(run, hook=Hook.TRAIN_STEP_END):
    return [loss_of(entry.event.cb_params) for entry in committed(run, {hook})]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_hold_every_event_in_order(run, tmp_path):
    path = export(run, "jsonl", tmp_path / "run.jsonl")

    lines = lines_of(path)
    entries = committed(run)
    assert [line["seq"] for line in lines] == list(range(len(entries)))
    assert [line["hook"] for line in lines] == [entry.event.hook.value for entry in entries]
    assert [line["time"] for line in lines] == [entry.event.time_ns / 1e9 for entry in entries]
    assert [(line["epoch"], line["step"]) for line in lines] == [
        (entry.epoch, entry.step) for entry in entries
    ]


def test_json_lines_show_values_references_and_large_arrays(run, tmp_path):
    lines = lines_of(export(run, "jsonl", tmp_path / "run.jsonl"))

    shown = next(line for line in lines if "large" in line["cb_params"])["cb_params"]
    assert shown["train_network"] == {
        "kind": "network",
        "type": "Linear",
        "summary": "2 parameters",
    }
    assert shown["large"] == {"array": "float32[1000]", "min": 0.0, "max": 999.0, "mean": 499.5}
    assert shown["net_outputs"] == losses_of(run)[0]
    assert shown["limit"] == "NaN"


def test_json_lines_have_decision_and_acks_beside_where_an_ack_said_more(run, tmp_path):
    lines = lines_of(export(run, "jsonl", tmp_path / "run.jsonl"))

    ends = [line for line in lines if line["hook"] == "on_train_epoch_end"]
    assert ends[0]["acks"][0]["patch"] == {"set": {"learning_rate": 2.0**-8}, "removed": ["large"]}
    assert ends[1]["decision"]["stops"] == [
        {"by": "Notes", "reason": "two are enough", "scope": "train"}
    ]
    failed = next(line for line in lines if line.get("decision", {}).get("detached"))
    assert failed["decision"]["detached"] == ["Fails"]
    assert failed["acks"][-1]["error"] == "ValueError: bad luck"
    assert "acks" not in lines[0]


def test_csv_has_a_row_per_step_evaluation_and_epoch_under_fixed_columns(run, tmp_path):
    path = export(run, "csv", tmp_path / "run.csv")

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:8] == [
        *("seq", "hook", "epoch", "step", "batch", "time", "wall_time", "loss"),
    ]
    assert list(rows[0])[8:] == [
        *("eval_results.accuracy", "eval_results.eval_loss", "learning_rate", "limit"),
        *("cb_params.seq", "tenfold"),
    ]
    steps = [row for row in rows if row["hook"] == "on_train_step_end"]
    assert [float(row["loss"]) for row in steps] == losses_of(run)
    assert [row["step"] for row in steps] == [str(step) for step in range(1, 9)]
    assert [row["batch"] for row in steps] == ["1", "2", "3", "4"] * 2
    assert [row["tenfold"] for row in steps] == ["", *(str(10 * step) for step in range(1, 8))]
    ends = [row for row in rows if row["hook"] == "on_eval_end"]
    assert [row["eval_results.accuracy"] for row in ends] == ["0.25", "0.75"]
    assert all(math.isnan(float(row["limit"])) for row in steps[1:])
    assert steps[0]["eval_results.accuracy"] == ""


def test_tensorboard_files_have_the_steps_losses_and_the_results(run, tmp_path):
    export(run, "tensorboard", tmp_path)

    found = EventAccumulator(str(tmp_path))
    found.Reload()
    losses = found.Scalars("train/loss")
    assert [event.step for event in losses] == list(range(1, 9))
    assert [event.value for event in losses] == pytest.approx(losses_of(run))
    results = found.Scalars("eval/accuracy")
    assert [(event.step, event.value) for event in results] == [(4, 0.25), (8, 0.75)]
    walls = [entry.event.wall_ns for entry in committed(run, {Hook.TRAIN_STEP_END})]
    assert [event.wall_time for event in losses] == pytest.approx([wall / 1e9 for wall in walls])


def test_sqlite_has_events_acks_stops_patches_scalars_and_the_log(run, tmp_path):
    path = export(run, "sqlite", tmp_path / "run.sqlite")

    with closing(sqlite3.connect(path)) as db:

        def rows(query):
            return db.execute(query).fetchall()

        events = [(entry.event.seq, entry.event.hook.value) for entry in committed(run)]
        assert rows("SELECT seq, hook FROM events ORDER BY seq") == events
        losses = rows(
            "SELECT value FROM scalars JOIN events USING (seq)"
            " WHERE name = 'loss' AND hook = 'on_train_step_end' ORDER BY seq"
        )
        assert [value for (value,) in losses] == losses_of(run)
        assert rows("SELECT by, reason, scope FROM stops") == [("Notes", "two are enough", "train")]
        assert rows("SELECT key, value FROM patches WHERE key IN ('learning_rate', 'large')")[
            -2:
        ] == [("learning_rate", "0.00390625"), ("large", None)]
        assert rows("SELECT by, error FROM acks WHERE error IS NOT NULL") == [
            ("Fails", "ValueError: bad luck")
        ]
        assert rows("SELECT run_id FROM run") == [(run.name,)]
        assert rows("SELECT level FROM log") == [("ERROR",), ("INFO",)]
        assert rows("SELECT DISTINCT value FROM scalars WHERE name = 'limit'") == [(None,)]


@pytest.mark.parametrize("to", ["jsonl", "csv", "sqlite", "tensorboard"])
def test_nothing_is_overwritten_unless_it_is_forced(run, tmp_path, to):
    path = tmp_path / "out"
    export(run, to, path)
    names = sorted(one.name for one in tmp_path.rglob("*"))

    with pytest.raises(ArgumentError, match="force replaces"):
        export(run, to, path)
    export(run, to, path, force=True)

    assert len(sorted(one.name for one in tmp_path.rglob("*"))) == len(names)


@pytest.mark.parametrize("to", ["jsonl", "csv", "sqlite", "tensorboard"])
def test_a_damaged_recording_leaves_nothing_behind(run, tmp_path, to):
    (segment,) = Recording(run).files
    data = segment.read_bytes()
    torn = tmp_path / segment.name
    middle = len(data) * 2 // 3
    torn.write_bytes(data[:middle] + bytes(4) + data[middle + 4 :])
    out = tmp_path / "out"
    out.mkdir()

    with pytest.raises(RecordingError):
        export(torn, to, out / "run")

    assert not [one for one in out.rglob("*") if one.is_file()]


def test_a_run_id_that_leads_elsewhere_gives_a_plain_file_name(run, tmp_path, monkeypatch):
    here = tmp_path / "one" / "two"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    repeat(run, tmp_path / "run", 1, run_id="../../up")

    path = export(tmp_path / "run", "jsonl")

    assert [path.resolve()] == list(here.iterdir())


def test_an_unknown_format_is_refused(run):
    with pytest.raises(ArgumentError, match="to must be one of .* got 'xml'"):
        export(run, "xml")  # type: ignore[arg-type]  # what is refused


def test_an_export_needs_no_jax(run, tmp_path):
    code = (
        "import sys; from railbus.subscribers import export\n"
        f"export({str(run)!r}, 'jsonl', {str(tmp_path / 'a')!r})\n"
        f"export({str(run)!r}, 'sqlite', {str(tmp_path / 'b')!r})\n"
        "print('jax' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("to", ["jsonl", "csv", "sqlite"])
def test_memory_does_not_grow_with_the_recording(run, tmp_path, to):
    peaks = []
    for events in (500, 1000, 6000):
        repeat(run, tmp_path / str(events), events)
        tracemalloc.start()
        export(tmp_path / str(events), to, tmp_path / f"{events}.{to}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[2] < 1.5 * peaks[1]
