"""Memory and CPU while a run is on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil
import pytest
from flax import nnx

from railbus.subscribers import Callback, DeviceMonitor
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]
DEVICE = {"device_memory_bytes", "device_memory_peak_bytes"}
TELLS = jax.local_devices()[0].memory_stats() is not None


def make_trainer() -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.01), {"mse"})


class Keeps(Callback):
    def on_train_begin(self, run_context):
        self.seen = {}

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        self.seen[cb_params.cur_step_num] = cb_params.get("process_memory_bytes")


def test_every_so_many_steps_values_are_kept_and_shown_to_those_that_follow():
    monitor, keeps = DeviceMonitor(every=3), Keeps()
    make_trainer().train(2, DATA, [monitor, keeps])

    names = {"step", "process_memory_bytes", "cpu_share"} | (DEVICE if TELLS else set())
    assert set(monitor.history) == names
    assert monitor.history["step"] == [3, 6]
    first, second = monitor.history["process_memory_bytes"]
    assert list(keeps.seen.values()) == [None, None, first, first, first, second, second, second]


def test_the_values_are_those_of_this_process():
    monitor = DeviceMonitor(every=8)
    make_trainer().train(2, DATA, monitor)

    resident = psutil.Process().memory_info().rss
    assert monitor.history["process_memory_bytes"][0] == pytest.approx(resident, rel=0.5)
    assert 0 < monitor.history["cpu_share"][0] <= psutil.cpu_count() + 1


def test_each_run_starts_anew_and_a_lone_eval_is_not_touched():
    monitor, trainer = DeviceMonitor(every=1), make_trainer()
    for _ in range(2):
        trainer.train(1, DATA, monitor)
    trainer.eval(DATA, monitor)

    assert monitor.history["step"] == [1, 2, 3, 4]


@pytest.mark.parametrize("arguments", [{"every": 0}, {"every": 1.0}, {"cpu_stats": True}])
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        DeviceMonitor(**arguments)
