"""The tables of a run."""

import csv

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError
from railbus.subscribers import Callback, CSVLogger, JSONLogger, TensorBoard
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer(optimizer=None) -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, loss_fn, optimizer or optax.sgd(0.01), {"mse"})


def table(path, separator=","):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


class Keeps(Callback):
    def __init__(self):
        self.losses = []

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs))


def test_a_row_per_epoch_holds_what_the_result_holds(tmp_path):
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
    trainer, path = make_trainer(optimizer), tmp_path / "deep/er/log.csv"
    result = trainer.fit(2, DATA, DATA, callbacks=CSVLogger(path))

    rows = table(path)
    assert list(rows[0]) == ["epoch", "step", "loss", "learning_rate", "mse", "eval_loss"]
    assert [row["step"] for row in rows] == ["4", "8"]
    assert {row["learning_rate"] for row in rows} == {"0.25"}
    for row, record in zip(rows, result.history, strict=True):
        assert {name: float(row[name]) for name in record} == pytest.approx(record)
    assert [one.name for one in path.parent.iterdir()] == ["log.csv"]


def test_a_value_that_comes_later_gets_a_column_and_corrupts_nothing(tmp_path):
    """Keras' CSVLogger keeps the columns of its first row."""
    make_trainer().fit(4, DATA, DATA, [2, 4], CSVLogger(tmp_path / "log.csv", separator=";"))

    rows = table(tmp_path / "log.csv", ";")
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["mse"] != "" for row in rows] == [False, True, False, True]
    assert all(None not in row and None not in row.values() for row in rows)


def test_steps_have_a_file_of_their_own(tmp_path):
    keeps = Keeps()
    make_trainer().train(2, DATA, [keeps, CSVLogger(tmp_path / "log.csv", every=3)])

    rows = table(tmp_path / "log_steps.csv")
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "3"), ("2", "6")]
    assert [float(row["loss"]) for row in rows] == [keeps.losses[2], keeps.losses[5]]


def test_append_goes_on_below_a_row_that_a_crash_cut_off(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,mine,step\r\n1,x,4\r\n2,")

    make_trainer().train(1, DATA, CSVLogger(path, append=True))

    rows = table(path)
    assert list(rows[0]) == ["epoch", "mine", "step", "loss"]
    assert [(row["epoch"], row["mine"], row["step"]) for row in rows] == [
        ("1", "x", "4"),
        ("2", "", ""),
        ("1", "", "4"),
    ]


def test_without_append_each_run_begins_a_new_file(tmp_path):
    logger, trainer = CSVLogger(tmp_path / "log.csv"), make_trainer()
    for _ in range(2):
        trainer.train(1, DATA, logger)

    assert len(table(tmp_path / "log.csv")) == 1


def test_the_files_hold_what_was_committed_when_the_run_fails(tmp_path):
    class Fails(Callback):
        def on_train_epoch_end(self, run_context):
            if run_context.original_args().cur_epoch_num == 2:
                raise ArithmeticError("bad luck")

    with pytest.raises(ArithmeticError):
        make_trainer().train(3, DATA, [CSVLogger(tmp_path / "log.csv", every=1), Fails()])

    assert len(table(tmp_path / "log.csv")) == 1
    assert len(table(tmp_path / "log_steps.csv")) == 8


def test_a_lone_eval_writes_nothing(tmp_path):
    make_trainer().eval(DATA, CSVLogger(tmp_path / "log.csv"))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": " "},
        {"path": 3},
        {"append": 1},
        {"separator": ""},
        {"separator": ", "},
        {"separator": 3},
        {"every": 0},
        {"every": True},
        {"keys": []},
    ],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        CSVLogger(**{"path": "log.csv", **arguments})


@pytest.mark.parametrize("kind", [CSVLogger, JSONLogger, TensorBoard])
def test_a_path_that_cannot_be_is_refused_before_the_first_step(tmp_path, kind):
    """An observer's error would only be logged, and the run go on to its end without the file."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ArgumentError, match="can be made"):
        make_trainer().train(1, DATA, kind(tmp_path / "file" / "log" / "x"))
