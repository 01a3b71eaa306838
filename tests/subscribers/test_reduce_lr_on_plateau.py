"""`ReduceLROnPlateau`, and the defects of MindSpore's and its peers' that it does not have."""

import math

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import NotTraced, ParamError
from railbus.subscribers import Callback, ReduceLROnPlateau
from railbus.trainer import Trainer

from .scripted import DATA, RATE, Scripted, carried, fit, make_trainer


class Rates(Callback):
    """The learning rate that each epoch begins with, in units of `RATE`."""

    def on_train_begin(self, run_context):
        self.seen = []

    def on_train_epoch_begin(self, run_context):
        self.seen.append(float(run_context.original_args().learning_rate) / RATE)


def rates_of(callback, values, name="accuracy"):
    rates = Rates()
    fit([rates, callback], values, name)
    return rates.seen


def test_it_lowers_the_rate_when_the_patience_is_at_its_end_and_prints_mindspores_line(capsys):
    plateau = ReduceLROnPlateau("accuracy", 0.5, patience=2, verbose=True)

    seen = rates_of(plateau, [0.5, 0.5, 0.4, 0.6, 0.6, 0.6, 0.6])

    assert seen == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 00003: ReduceLROnPlateau reducing learning rate to 0.00390625.",
        "Epoch 00006: ReduceLROnPlateau reducing learning rate to 0.001953125.",
    ]


def test_the_next_step_uses_the_new_rate_and_none_before_it():
    kernels = []

    class Kernels(Callback):
        def on_train_step_end(self, run_context):
            cb_params = run_context.original_args()
            kernels.append(np.array(cb_params.train_network.params["kernel"])[0, 0])

    unit = [(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))] * 2
    network = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.5)
    trainer = Trainer(network, lambda out, y: (out - y).mean(), optimizer)
    trainer.train(4, unit, [Kernels(), ReduceLROnPlateau("loss", 0.5, 1, min_delta=100.0)])

    assert np.allclose(np.diff(kernels), [-0.5, -0.5, -0.5, -0.25, -0.25, -0.125, -0.125])


def test_a_value_of_0_counts_where_mindspores_takes_it_for_missing():
    assert rates_of(ReduceLROnPlateau("accuracy", 0.5, 1), [0.0, 0.0, 0.0]) == [1, 1, 0.5]


def test_nan_is_no_improvement():
    assert rates_of(ReduceLROnPlateau("mse", 0.5, 1), [math.nan, 0.5, 0.4], "mse") == [1, 0.5, 0.5]


def test_nothing_counts_while_it_cools_down():
    plateau = ReduceLROnPlateau("accuracy", 0.5, patience=1, cooldown=2)

    assert rates_of(plateau, [0.5] * 6) == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_the_rate_never_goes_below_min_lr_and_stays_there(capsys):
    plateau = ReduceLROnPlateau("accuracy", 0.1, 1, verbose=True, min_lr=0.001)

    fit(plateau, [0.5] * 5)

    assert capsys.readouterr().out.splitlines() == [
        "Epoch 00002: ReduceLROnPlateau reducing learning rate to 0.001."
    ]


def test_the_patience_and_cooldown_outlast_a_resume_where_keras_loses_them():
    """keras-team/keras #14862."""

    class Resumes(ReduceLROnPlateau):
        def on_train_begin(self, run_context):
            super().on_train_begin(run_context)
            self.load_state_dict(state)

    first = ReduceLROnPlateau("accuracy", 0.5, patience=3)
    fit(first, [0.9, 0.8, 0.8])
    state = carried(first.state_dict())
    rates = Rates()
    make_trainer({"accuracy": Scripted([0.85, 0.85])}).fit(
        5, DATA, DATA, callbacks=[rates, Resumes("accuracy", 0.5, patience=3)], initial_epoch=3
    )

    assert state == {"wait": 2, "cooling": 0, "best": 0.9}
    assert rates.seen == [1, 0.5]


def test_a_second_run_starts_anew():
    plateau = ReduceLROnPlateau("accuracy", 0.5, patience=1)
    fit(plateau, [0.9])

    assert rates_of(plateau, [0.1, 0.2, 0.3]) == [1, 1, 1]


@pytest.mark.parametrize(
    ("optimizer", "error"),
    [
        (optax.sgd(0.1), ParamError),
        (optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(1.0, 0.0, 9)), NotTraced),
    ],
)
def test_a_rate_that_cannot_be_set_is_refused_before_the_first_step(optimizer, error):
    """MindSpore's raises at the end of the first epoch."""
    trainer = Trainer(
        nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda out, y: (out - y).mean(), optimizer
    )
    before = float(trainer.network.kernel[...][0, 0])

    with pytest.raises(error):
        trainer.train(1, DATA, ReduceLROnPlateau("loss"))
    assert float(trainer.network.kernel[...][0, 0]) == before


def test_a_lone_eval_leaves_it_alone():
    assert "mse" in make_trainer().eval(DATA, ReduceLROnPlateau())


@pytest.mark.parametrize(
    "arguments",
    [
        {"monitor": None},
        {"factor": 0.0},
        {"factor": 1},
        {"factor": "0.5"},
        {"patience": -1},
        {"patience": True},
        {"verbose": 0},
        {"mode": "sideways"},
        {"min_delta": None},
        {"cooldown": 0.5},
        {"min_lr": -1.0},
        {"unknown": 1},
    ],
)
def test_constructors_refuse_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        ReduceLROnPlateau(**arguments)
