"""`Tracking` and its trackers: one of the test's own, W&B offline and MLflow in SQLite."""

import json
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, MLflowTracker, Tracker, Tracking, WandbTracker
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]
NAMES = {"train/loss", "train/learning_rate", "eval/mse", "eval/eval_loss"}


def make_trainer() -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.01)
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optimizer, {"mse"})


class Notes(Tracker):
    """Keeps what it is told; raises at step `fails`."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.started: list[tuple[str, Mapping[str, Any]]] = []
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.ended: list[str] = []
        self.times: list[float] = []
        self.threads: set[str] = set()

    def start(self, run_id: str, config: Mapping[str, Any], at: float) -> None:
        self.started.append((run_id, config))
        self.times.append(at)

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        if step == self.fails:
            raise OSError("no service")
        self.logged.append((step, values))
        self.times.append(at)
        self.threads.add(threading.current_thread().name)

    def end(self, status: str, at: float) -> None:
        self.ended.append(status)
        self.times.append(at)


class Fails(Callback):
    def on_train_step_begin(self, run_context) -> None:
        if run_context.original_args().cur_step_num == 3:
            raise ValueError("bad luck")


def test_a_run_is_tracked_from_its_settings_to_its_end():
    notes = Notes()
    tracking = Tracking(notes, every=3, config={"seed": 7})
    result = make_trainer().fit(2, DATA, DATA, callbacks=tracking, run_id="mine")

    [(run_id, config)] = notes.started
    assert (run_id, config["epoch_num"], config["network"], config["seed"]) == (
        "mine", 2, "Linear", 7
    )  # fmt: skip
    assert config["learning_rate"] == pytest.approx(0.01)
    steps = [(step, name) for step, values in notes.logged for name in values]
    assert [step for step, name in steps if name == "train/loss"] == [3, 6]
    assert [step for step, name in steps if name == "eval/mse"] == [4, 8]
    assert notes.logged[-1][1]["eval/mse"] == pytest.approx(result.metrics["mse"])
    assert notes.ended == ["completed"]
    assert notes.times == sorted(notes.times)
    assert notes.threads == {"railbus Tracking"}


def test_a_failed_run_ends_as_failed_where_others_leave_it_running():
    """huggingface/transformers#30333: the run failed, the tracker still shows it as running."""
    notes = Notes()
    with pytest.raises(ValueError, match="bad luck"):
        make_trainer().train(1, DATA, [Tracking(notes), Fails()])

    assert [step for step, _ in notes.logged] == [1, 2]
    assert notes.ended == ["failed"]


def test_a_tracker_that_fails_does_not_fail_the_run(caplog):
    """verl#4904: if the tracker crashes, training crashes too."""
    notes = Notes(fails=2)
    result = make_trainer().train(1, DATA, Tracking(notes))

    assert (result.status, result.step) == ("completed", 4)
    assert [step for step, _ in notes.logged] == [1]
    assert notes.ended == ["failed"]
    assert len(caplog.records) == 1


def test_a_lone_eval_is_not_tracked():
    notes = Notes()
    make_trainer().eval(DATA, Tracking(notes))

    assert not notes.started and not notes.ended


@pytest.fixture(scope="module")
def wandb() -> Iterator[Any]:
    """W&B that reports nothing, and whose service ends with these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("WANDB_SILENT", "true")
        import wandb

        yield wandb
        wandb.teardown()


def records(path: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # generated

    data, place, body = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        body += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(body)
            body = b""


def rows(path: Path) -> list[dict[str, Any]]:
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in one.history.item}
        for one in records(path)
        if one.WhichOneof("record_type") == "history"
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_wandb_holds_an_offline_run(tmp_path, wandb, fails):
    tracker = WandbTracker("project", mode="offline", directory=tmp_path / "new")
    callbacks: list[Callback] = [Tracking(tracker, config={"seed": 7})]
    if fails:
        with pytest.raises(ValueError, match="bad luck"):
            make_trainer().train(1, DATA, [*callbacks, Fails()], run_id="mine")
    else:
        make_trainer().fit(2, DATA, DATA, callbacks=callbacks, run_id="mine")

    [path] = tmp_path.glob("new/wandb/offline-run-*/*.wandb")
    found = rows(path)
    [run] = [one.run for one in records(path) if one.WhichOneof("record_type") == "run"][:1]
    [ended] = [one.exit for one in records(path) if one.WhichOneof("record_type") == "exit"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.display_name, config["seed"], config["network"]) == ("mine", 7, "Linear")
    assert [row["_step"] for row in found] == list(range(1, 3 if fails else 9))
    assert NAMES <= set().union(*found) or fails
    assert ended.exit_code == int(fails)
    assert wandb.run is None


@pytest.fixture
def mlflow(tmp_path, monkeypatch) -> Any:
    """A client of a new SQLite store; MLflow reports nothing."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    import mlflow

    return mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, in MLflow's own code
@pytest.mark.parametrize("fails", [False, True])
def test_mlflow_holds_a_run(mlflow, fails):
    tracking = Tracking(MLflowTracker("experiment", mlflow.tracking_uri), config={"seed": 7})
    if fails:
        with pytest.raises(ValueError, match="bad luck"):
            make_trainer().train(1, DATA, [tracking, Fails()], run_id="mine")
    else:
        make_trainer().fit(2, DATA, DATA, callbacks=tracking, run_id="mine")

    experiment = mlflow.get_experiment_by_name("experiment").experiment_id
    [run] = mlflow.search_runs([experiment])
    losses = mlflow.get_metric_history(run.info.run_id, "train/loss")
    assert (run.info.run_name, run.info.status) == ("mine", "FAILED" if fails else "FINISHED")
    assert run.data.tags["railbus.status"] == ("failed" if fails else "completed")
    assert (run.data.params["seed"], run.data.params["network"]) == ("7", "Linear")
    assert [metric.step for metric in losses] == list(range(1, 3 if fails else 9))
    assert set(run.data.metrics) == NAMES or fails
    assert run.info.start_time <= losses[0].timestamp <= run.info.end_time


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, in MLflow's own code
def test_a_run_whose_settings_mlflow_refuses_is_not_shown_as_running(mlflow):
    tracker = MLflowTracker("experiment", mlflow.tracking_uri)
    make_trainer().train(1, DATA, Tracking(tracker, config={"no|name": 1}))

    [run] = mlflow.search_runs([mlflow.get_experiment_by_name("experiment").experiment_id])
    assert run.info.status == "FAILED"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Tracking, {"tracker": print}),
        (Tracking, {"tracker": Notes(), "every": 0}),
        (Tracking, {"tracker": Notes(), "config": [1]}),
        (WandbTracker, {"project": 3}),
        (WandbTracker, {"project": "p", "mode": "on"}),
        (WandbTracker, {"project": "p", "directory": 3}),
        (WandbTracker, {"project": "p", "unknown": 3}),
        (MLflowTracker, {"experiment": 3}),
        (MLflowTracker, {"experiment": "e", "tracking_uri": 3}),
    ],
)
def test_constructors_refuse_what_cannot_work(kind, arguments):
    with pytest.raises((TypeError, ValueError)):
        kind(**arguments)


@pytest.mark.parametrize(("kind", "package"), [(WandbTracker, "wandb"), (MLflowTracker, "mlflow")])
def test_a_missing_package_is_named_with_its_extra(kind, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ValueError, match=rf"pip install 'railbus\[{package}\]'"):
        kind("name")
