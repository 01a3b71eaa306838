"""Steps and samples per second, and their part of the peak."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, ThroughputMonitor
from railbus.trainer import ArrayDataset, RunAhead, Trainer

X, Y = np.ones((16, 1), np.float32), np.zeros((16, 1), np.float32)
DATA = [(X[:size], Y[:size]) for size in (3, 3, 3, 2)]


def make_trainer() -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, loss_fn, optax.sgd(0.01), {"mse"}, run_ahead=RunAhead.off())


class Clock(Callback):
    """The seconds of each step, as the events tell them."""

    def on_train_begin(self, run_context):
        self.seconds = []

    def on_train_epoch_begin(self, run_context):
        self.since = run_context.now()

    def on_train_step_end(self, run_context):
        self.seconds.append(run_context.now() - self.since)
        self.since = run_context.now()


def test_rates_are_those_of_the_last_steps_without_the_validation(capsys):
    clock, monitor = Clock(), ThroughputMonitor(window=3, peak_flops=1e9, flops_per_step=5)
    make_trainer().fit(2, DATA, DATA, callbacks=[clock, monitor])

    first, second = sum(clock.seconds[:3]), sum(clock.seconds[3:6])
    assert monitor.history["step"] == [3, 6]
    assert monitor.history["steps_per_second"] == pytest.approx([3 / first, 3 / second])
    assert monitor.history["samples_per_second"] == pytest.approx([9 / first, 8 / second])
    assert monitor.history["mfu"] == pytest.approx([15 / first / 1e9, 15 / second / 1e9])
    lines = capsys.readouterr().out.splitlines()
    number = r"[0-9.e+]+"
    line = rf"epoch: 1 step: 3, {number} steps/s, {number} samples/s, mfu: [0-9.]+%"
    assert re.fullmatch(line, lines[0]) and lines[1].startswith("epoch: 2 step: 2, ")


def test_samples_are_counted_where_the_data_is_on_the_device():
    monitor = ThroughputMonitor(window=2, verbose=False)
    data = ArrayDataset(X, Y, batch_size=8)
    make_trainer().train(1, data, monitor, dataset_sink_mode=True)

    (steps,), (samples,) = (monitor.history[f"{name}_per_second"] for name in ("steps", "samples"))
    assert samples == pytest.approx(8 * steps)


def test_a_given_batch_size_counts_instead_and_each_run_starts_anew(capsys):
    monitor, trainer = ThroughputMonitor(window=4, batch_size=10, verbose=False), make_trainer()
    for _ in range(2):
        trainer.train(1, DATA, monitor)

    (steps,), (samples,) = (monitor.history[f"{name}_per_second"] for name in ("steps", "samples"))
    assert samples == pytest.approx(10 * steps)
    assert "mfu" not in monitor.history and capsys.readouterr().out == ""


def test_without_a_count_the_flops_are_those_of_xla():
    class Asks(Callback):
        def on_train_begin(self, run_context):
            self.cost = run_context.original_args().train_network.cost

    asks, monitor = Asks(), ThroughputMonitor(window=4, verbose=False, peak_flops=1e9)
    make_trainer().train(1, DATA, [asks, monitor])

    rate = monitor.history["steps_per_second"][0]
    assert monitor.history["mfu"] == pytest.approx([asks.cost.model_flops * rate / 1e9])


def test_a_lone_eval_is_not_touched(capsys):
    monitor = ThroughputMonitor(window=1)
    make_trainer().eval(DATA, monitor)

    assert (monitor.history, capsys.readouterr().out) == ({}, "")


@pytest.mark.parametrize(
    "arguments",
    [
        {"window": 0},
        {"window": 1.5},
        {"batch_size": 0},
        {"flops_per_step": 1.0},
        {"flops_per_step": "1", "peak_flops": 1},
        {"peak_flops": 0},
        {"verbose": None},
        {"every": 1},
    ],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        ThroughputMonitor(**arguments)
