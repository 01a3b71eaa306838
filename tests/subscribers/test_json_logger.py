"""A run as JSON Lines."""

import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, JSONLogger
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer(loss_fn=lambda out, y: jnp.square(out - y).mean()) -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optimizer, {"mse"})


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def lines_of(path):
    text = path.read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in text]


class Ends(Callback):
    def __init__(self, how):
        self.how = how

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 6:
            self.how(run_context)


def fail(run_context):
    raise ArithmeticError("bad luck")


def test_steps_epochs_and_the_end_have_a_line_each(tmp_path):
    path = tmp_path / "deep/er/log.jsonl"
    result = make_trainer().fit(2, DATA, DATA, 2, JSONLogger(path, every=3), run_id="one")

    lines = lines_of(path)
    assert [(one["event"], one["epoch"], one["step"]) for one in lines] == [
        ("step", 1, 3),
        ("epoch", 1, 4),
        ("step", 2, 6),
        ("epoch", 2, 8),
        ("end", 2, 8),
    ]
    assert {one["run_id"] for one in lines} == {"one"}
    assert lines[0]["hyperparams"] == {"learning_rate": 0.25}
    assert "metrics" not in lines[1]
    for line, record in zip((lines[1], lines[3]), result.history, strict=True):
        shown = {"epoch": line["epoch"], "loss": line["loss"], **line.get("metrics", {})}
        assert shown == pytest.approx(record)
    assert (lines[-1]["status"], lines[-1]["reason"]) == ("completed", None)
    assert [one["time"] for one in lines] == sorted(one["time"] for one in lines)


def test_the_last_line_says_who_stopped_the_run_and_why(tmp_path):
    stops = Ends(lambda context: context.request_stop("enough"))
    make_trainer().train(2, DATA, [JSONLogger(tmp_path / "log.jsonl"), stops])

    last = lines_of(tmp_path / "log.jsonl")[-1]
    assert (last["status"], last["reason"], last["by"]) == ("stopped", "enough", "Ends")


def test_an_exception_is_the_last_line_of_a_closed_file(tmp_path):
    with pytest.raises(ArithmeticError):
        make_trainer().train(2, DATA, [JSONLogger(tmp_path / "log.jsonl"), Ends(fail)])

    lines = lines_of(tmp_path / "log.jsonl")
    assert [one["event"] for one in lines[-2:]] == ["step", "end"]
    assert (lines[-1]["status"], lines[-1]["reason"]) == ("failed", "ArithmeticError: bad luck")


def test_nan_and_infinity_are_strings_so_that_every_line_is_json(tmp_path):
    path = tmp_path / "log.jsonl"
    for value in (np.nan, -np.inf):
        trainer = make_trainer(lambda out, y, value=value: (out - y).mean() * 0 + value)
        trainer.train(1, DATA[:1], JSONLogger(path, append=True))

    assert [one["loss"] for one in lines_of(path) if "loss" in one] == ["NaN"] * 2 + [
        "-Infinity"
    ] * 2


def test_append_goes_on_on_a_new_line_after_a_crash(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "step"}\n{"event": ')

    make_trainer().train(1, DATA, JSONLogger(path, append=True, every=0))

    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"event": "step"}', '{"event": ']
    assert [json.loads(line)["event"] for line in lines[2:]] == ["epoch", "end"]


def test_without_append_each_run_begins_a_new_file(tmp_path):
    logger, trainer = JSONLogger(tmp_path / "log.jsonl"), make_trainer()
    for _ in range(2):
        trainer.train(1, DATA, logger)

    assert len(lines_of(tmp_path / "log.jsonl")) == 6


def test_a_lone_eval_writes_nothing(tmp_path):
    make_trainer().eval(DATA, JSONLogger(tmp_path / "log.jsonl"))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [{"path": ""}, {"path": 3}, {"append": 1}, {"every": -1}, {"every": 1.0}, {"indent": 2}],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        JSONLogger(**{"path": "log.jsonl", **arguments})
