"""`LearningRateScheduler`: when it is called, from when its rate counts, what it refuses."""

import math

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, NotTraced, ParamError
from railbus.subscribers import Callback, LearningRateScheduler
from railbus.trainer import RunAhead, Trainer

from .scripted import DATA, RATE, make_trainer

UNIT = [(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))] * 3


class Updates(Callback):
    """How far each step has moved the kernel: its learning rate, as the gradient is 1."""

    def on_train_begin(self, run_context):
        self.seen, self._last = [], self._kernel(run_context)

    def on_train_step_end(self, run_context):
        before, self._last = self._last, self._kernel(run_context)
        self.seen.append(before - self._last)

    def _kernel(self, run_context):
        return float(run_context.original_args().train_network.params["kernel"][0, 0])


def updates_of(scheduler, epochs=2, **settings) -> list[float]:
    network = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)
    trainer = Trainer(
        network, lambda out, y: (out - y).mean(), optimizer, run_ahead=RunAhead(**settings)
    )
    updates = Updates()
    trainer.train(epochs, UNIT, [updates, scheduler])
    return updates.seen


def halved_at(places, calls):
    def change(rate, place):
        calls.append((rate, place))
        return rate / 2 if place in places else rate

    return change


@pytest.mark.parametrize("block_steps", [1, 3])
def test_a_rate_set_at_a_step_counts_from_the_next_one(block_steps):
    calls = []

    seen = updates_of(LearningRateScheduler(halved_at({2, 4}, calls)), block_steps=block_steps)

    assert calls == [(1.0, 1), (1.0, 2), (0.5, 3), (0.5, 4), (0.25, 5), (0.25, 6)]
    assert all(type(rate) is float for rate, _ in calls)
    assert np.allclose(seen, [1, 1, 0.5, 0.5, 0.25, 0.25])


def test_a_rate_by_epoch_counts_from_the_next_one():
    calls = []

    seen = updates_of(LearningRateScheduler(halved_at({1}, calls), by="epoch"), 3)

    assert calls == [(1.0, 1), (0.5, 2), (0.5, 3)]
    assert np.allclose(seen, [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])


def test_a_rate_that_stays_the_same_takes_nothing_back():
    tenth = LearningRateScheduler(lambda rate, step: 0.1)
    result = make_trainer().train(3, DATA, tenth)
    same = make_trainer().train(3, DATA, LearningRateScheduler(lambda rate, step: RATE))

    assert result.stats.rollbacks <= 1
    assert same.stats.rollbacks == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "at step 1 must give a number, got NoneType None"),
        ("0.1", "must give a number, got str '0.1'"),
        (True, "must give a number, got bool True"),
        (math.nan, "must give a finite rate of at least 0, got nan"),
        (-0.5, "must give a finite rate of at least 0, got -0.5"),
    ],
)
def test_a_function_that_gives_no_rate_is_named_with_the_step(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_trainer().train(1, DATA, LearningRateScheduler(lambda rate, step: given))


@pytest.mark.parametrize(
    ("rate", "error"), [(None, ParamError), (optax.linear_schedule(1.0, 0.0, 9), NotTraced)]
)
def test_a_rate_that_cannot_be_set_is_refused_before_the_first_step(rate, error):
    """MindSpore's raises at the end of the first step."""
    optimizer = optax.inject_hyperparams(optax.sgd)(rate) if rate else optax.sgd(0.1)
    trainer = Trainer(
        nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda out, y: (out - y).mean(), optimizer
    )
    before = float(trainer.network.kernel[...][0, 0])

    with pytest.raises(error):
        trainer.train(1, DATA, LearningRateScheduler(lambda rate, step: rate))
    assert float(trainer.network.kernel[...][0, 0]) == before


def test_a_lone_eval_leaves_it_alone_where_mindspores_ends_in_a_key_error():
    assert "mse" in make_trainer().eval(DATA, LearningRateScheduler(lambda rate, step: rate))


@pytest.mark.parametrize(
    ("given", "options"), [(0.1, {}), (print, {"by": "batch"}), (print, {"unknown": 1})]
)
def test_constructors_refuse_what_cannot_work(given, options):
    """MindSpore takes what cannot be called."""
    with pytest.raises((TypeError, ValueError)):
        LearningRateScheduler(given, **options)


def test_a_schedule_written_for_keras_is_refused():
    """It takes the epoch first; called with the rate first it would give nonsense, silently."""
    with pytest.raises(
        ArgumentError, match=r"takes \(lr, number\), MindSpore's order, got \('epoch'"
    ):
        LearningRateScheduler(lambda epoch, lr: lr, by="epoch")
    with pytest.raises(ArgumentTypeError, match="must take"):
        LearningRateScheduler(lambda lr: lr)  # type: ignore[arg-type,misc]
