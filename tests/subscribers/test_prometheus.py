"""A run as Prometheus metrics."""

import threading
from urllib.error import URLError
from urllib.request import urlopen

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from prometheus_client import CollectorRegistry

from railbus.subscribers import Callback, Prometheus
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer() -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optimizer, {"mse"})


class Scrapes(Callback):
    """Asks the server in the middle of the run, and fails then on request."""

    def __init__(self, served, fails=False):
        self.served, self.fails = served, fails

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 3:
            self.address = f"http://127.0.0.1:{self.served.port}/metrics"
            with urlopen(self.address, timeout=20) as answer:
                self.text = answer.read().decode()
            if self.fails:
                raise ArithmeticError("bad luck")


def test_counters_and_gauges_say_how_far_the_run_is_and_what_it_found():
    prometheus = Prometheus()
    result = make_trainer().fit(2, DATA, DATA, callbacks=prometheus)

    text, value = prometheus.exposition(), prometheus.registry.get_sample_value
    assert "# TYPE railbus_steps_total counter" in text
    assert (value("railbus_steps_total"), value("railbus_epoch")) == (8, 2)
    assert value("railbus_hyperparam", {"name": "learning_rate"}) == 0.25
    for name in ("mse", "eval_loss"):
        assert value("railbus_metric", {"name": name}) == pytest.approx(result.metrics[name])
    hooks = {"begin": 1, "epoch_begin": 2, "step_end": 8, "epoch_end": 2, "end": 1}
    for hook, times in hooks.items():
        assert value("railbus_events_total", {"hook": f"on_train_{hook}"}) == times


def test_the_loss_is_that_of_the_last_step():
    class Keeps(Callback):
        def on_train_step_end(self, run_context):
            self.loss = float(run_context.original_args().net_outputs)

    prometheus, keeps = Prometheus(), Keeps()
    make_trainer().train(1, DATA, [prometheus, keeps])

    assert prometheus.registry.get_sample_value("railbus_loss") == keeps.loss


@pytest.mark.parametrize("fails", [False, True])
def test_a_port_serves_on_loopback_while_the_run_is_on_however_it_ends(fails):
    threads, prometheus = threading.active_count(), Prometheus(port=0)
    scrapes = Scrapes(prometheus, fails)
    if fails:
        with pytest.raises(ArithmeticError):
            make_trainer().train(1, DATA, [prometheus, scrapes])
    else:
        make_trainer().train(1, DATA, [prometheus, scrapes])

    assert "railbus_steps_total 3.0" in scrapes.text
    assert (prometheus.port, threading.active_count()) == (None, threads)
    with pytest.raises(URLError):
        urlopen(scrapes.address, timeout=20)


def test_counters_count_on_in_the_next_run_and_a_lone_eval_adds_nothing():
    prometheus, trainer = Prometheus(), make_trainer()
    for _ in range(2):
        trainer.train(1, DATA, prometheus)
    trainer.eval(DATA, prometheus)

    assert prometheus.registry.get_sample_value("railbus_steps_total") == 8
    assert "on_eval" not in prometheus.exposition()


def test_two_in_one_registry_are_refused():
    registry = CollectorRegistry()
    assert Prometheus(registry=registry).registry is registry
    with pytest.raises(ValueError, match="registry"):
        Prometheus(registry=registry)


@pytest.mark.parametrize(
    "arguments", [{"port": -1}, {"port": 65536}, {"port": "80"}, {"registry": {}}, {"host": ""}]
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        Prometheus(**arguments)
