"""The progress bar: live on a terminal, lines elsewhere, gone after the run."""

import re
import sys
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, ProgressBar
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer() -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.01), {"mse"})


class Fails(Callback):
    def on_train_step_end(self, run_context):
        raise ArithmeticError("bad luck")


@pytest.fixture
def terminal(monkeypatch):
    """Rich takes this for a terminal."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


def test_without_a_terminal_there_is_one_plain_line_an_epoch(capsys):
    result = make_trainer().fit(4, DATA, DATA, 2, [ProgressBar()], initial_epoch=1)

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 2/4", "epoch 3/4", "epoch 4/4"]
    for line, record in zip(lines, result.history, strict=True):
        rate = r"[0-9.e+]+ steps/s"
        shown = [f"loss {record['loss']:.4g}", rate]
        shown += [f"{name} {record[name]:.4g}" for name in ("mse", "eval_loss") if name in record]
        assert re.fullmatch(f"4 steps, {', '.join(shown)}", line.split(": ")[1])


def test_a_terminal_gets_a_bar_with_steps_loss_and_validation(terminal, capsys):
    make_trainer().fit(1, iter_only(DATA), DATA, callbacks=ProgressBar(1e-9, total=4))

    shown = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "epoch 1/1 " in shown and "epoch 1/1 validation" in shown
    assert re.search(r"4/4 loss [0-9.e-]+ [0-9.e+]+ steps/s", shown)
    assert "epoch 1/1: 4 steps" in shown


def test_the_bar_is_drawn_no_oftener_than_asked_for(terminal, capsys):
    make_trainer().train(1, DATA * 20, ProgressBar(refresh=1e9))

    assert "loss" not in capsys.readouterr().out.split("epoch 1/1:")[0]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_running_however_the_run_ends(terminal, capsys, fails):
    """A live display that is not stopped keeps the cursor hidden and stdout redirected."""
    before, out = threading.active_count(), sys.stdout
    trainer = make_trainer()
    if fails:
        with pytest.raises(ArithmeticError):
            trainer.train(2, DATA, [ProgressBar(), Fails()])
    else:
        trainer.train(2, DATA, ProgressBar())

    shown = capsys.readouterr().out
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert (threading.active_count(), sys.stdout) == (before, out)


def test_a_lone_eval_shows_nothing(terminal, capsys):
    make_trainer().eval(DATA, ProgressBar())

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments", [{"refresh": 0}, {"refresh": "1"}, {"total": 0}, {"total": True}, {"leave": True}]
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        ProgressBar(**arguments)


def iter_only(batches):
    """A data set that does not say how many batches it has."""

    class Batches:
        def __iter__(self):
            return iter(batches)

    return Batches()
