"""What a run uses of the device's power."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, FlopsUtilizationCollector
from railbus.trainer import Trainer

DATA = [(np.ones((8, 32), np.float32), np.zeros((8, 16), np.float32))] * 4
PRODUCTS = 2 * 2 * 8 * 32 * 16  # forward, and backward to the kernel


def make_trainer() -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    return Trainer(nnx.Linear(32, 16, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.01), {"mse"})


class Clock(Callback):
    def on_train_epoch_begin(self, run_context):
        self.began = run_context.now()

    def on_train_step_end(self, run_context):
        self.ended = run_context.now()


def test_it_prints_what_a_step_computes_and_what_the_steps_have_used(capsys):
    clock, collector = Clock(), FlopsUtilizationCollector(4, computility=1e9)
    make_trainer().fit(1, DATA, DATA, callbacks=[clock, collector])

    begin, line = capsys.readouterr().out.splitlines()
    kinds = [f"{part} {kind}" for part in ("Full", "Shard") for kind in ("model", "hardware")]
    found = re.fullmatch(", ".join(f"{kind} flops is ([0-9.]+)" for kind in kinds) + r"\.", begin)
    assert found is not None
    model, hardware, *shard = map(float, found.groups())
    assert PRODUCTS <= model < 1.5 * PRODUCTS and shard == [model, hardware]
    each = (clock.ended - clock.began) / 4
    assert (collector.mfu, collector.hfu) == pytest.approx(
        (model / each / 1e9, hardware / each / 1e9)
    )
    used = f"mfu:{collector.mfu:.2%} hfu:{collector.hfu:.2%}"
    assert line == f"Train per step time: {each * 1e3:.3f} ms {used}"


@pytest.mark.parametrize(("size", "lines"), [(1, 4), (2, 2), (3, 1), (5, 0)])
def test_it_prints_every_data_size_steps_where_mindspores_leaves_just_these_out(
    size, lines, capsys
):
    make_trainer().train(1, DATA, FlopsUtilizationCollector(size))

    assert capsys.readouterr().out.count("Train per step time") == lines


def test_without_full_flops_only_a_devices_part_is_printed(capsys):
    make_trainer().train(1, DATA, FlopsUtilizationCollector(9, full_flops=False))

    assert capsys.readouterr().out.startswith("Shard model flops is ")


def test_a_lone_eval_is_not_touched(capsys):
    make_trainer().eval(DATA, FlopsUtilizationCollector(1))

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        {"data_size": 0},
        {"data_size": 1.0},
        {"computility": 0},
        {"computility": "1"},
        {"full_flops": 1},
        {"enable_ma_collector": True},
    ],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        FlopsUtilizationCollector(**{"data_size": 1, **arguments})
