"""The learning rate over a run."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, LearningRateMonitor
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer(optimizer) -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optimizer, {"mse"})


def injected(**values):
    return optax.inject_hyperparams(optax.sgd)(**values)


class Halves(Callback):
    def on_train_step_begin(self, run_context):
        cb_params = run_context.original_args()
        if cb_params.cur_step_num == 3:
            cb_params.learning_rate = cb_params.learning_rate / 2


def test_every_injected_hyperparameter_is_kept_with_its_steps_and_epochs():
    monitor = LearningRateMonitor(every=3)
    make_trainer(injected(learning_rate=0.5, momentum=0.25)).train(2, DATA, monitor)

    assert (monitor.steps, monitor.epochs) == ([3, 6], [1, 2])
    assert monitor.history == {"learning_rate": [0.5, 0.5], "momentum": [0.25, 0.25]}


def test_a_schedule_shows_what_each_step_has_used():
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    monitor = LearningRateMonitor()
    make_trainer(injected(learning_rate=schedule)).train(1, DATA, monitor)

    assert monitor.history == {"learning_rate": [1.0, 0.75, 0.5, 0.25]}


def test_a_value_that_a_callback_assigns_shows_from_its_step_on():
    monitor = LearningRateMonitor()
    make_trainer(injected(learning_rate=0.5)).train(1, DATA, [monitor, Halves()])

    assert monitor.history == {"learning_rate": [0.5, 0.5, 0.25, 0.25]}


def test_epochs_are_kept_and_printed_and_each_run_starts_anew(capsys):
    monitor = LearningRateMonitor("epoch", verbose=True)
    trainer = make_trainer(injected(learning_rate=0.5))
    for _ in range(2):
        trainer.fit(2, DATA, DATA, callbacks=monitor)

    assert (monitor.steps, monitor.epochs) == ([4, 8], [1, 2])
    assert (
        capsys.readouterr().out.splitlines()
        == [
            "epoch: 1 step: 4, learning_rate: 0.5",
            "epoch: 2 step: 4, learning_rate: 0.5",
        ]
        * 2
    )


def test_an_optimizer_that_injects_nothing_is_refused_with_the_way_to_inject():
    with pytest.raises(ValueError, match="inject_hyperparams"):
        make_trainer(optax.sgd(0.5)).train(1, DATA, LearningRateMonitor())


def test_a_lone_eval_is_not_touched():
    monitor = LearningRateMonitor()
    make_trainer(optax.sgd(0.5)).eval(DATA, monitor)

    assert monitor.history == {}


@pytest.mark.parametrize(
    "arguments", [{"every": 0}, {"every": "step"}, {"every": True}, {"verbose": 1}, {"n": 1}]
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        LearningRateMonitor(**arguments)
