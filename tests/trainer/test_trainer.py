"""What `Trainer` does for its callers."""

from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from anyio import to_thread
from flax import nnx

from railbus.bus import EventBus
from railbus.schemas import RailbusError
from railbus.subscribers import Callback
from railbus.trainer import Trainer

RNG = np.random.default_rng(0)
DATA = [
    (RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(4, 2)).astype(np.float32))
    for _ in range(3)
]


def squared(outputs, labels):
    return jnp.square(outputs - labels).mean()


def make_trainer(**changes) -> Trainer:
    arguments = {"loss_fn": squared, "optimizer": optax.sgd(0.1), "metrics": {"mse"}} | changes
    return Trainer(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), **arguments)


def by_hand(steps: int) -> Any:
    module: Any = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    params = {"kernel": module.kernel[...], "bias": module.bias[...]}
    for inputs, labels in (DATA * steps)[:steps]:
        grads = jax.grad(
            lambda p, x=inputs, y=labels: squared(x @ p["kernel"] + p["bias"][None], y)
        )(params)
        params = jax.tree.map(lambda p, g: p - jnp.float32(0.1) * g, params, grads)
    return jax.tree.map(np.asarray, params)


def values(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: np.asarray(getattr(trainer.network, name)[...]) for name in ("kernel", "bias")}


def close(found, wanted) -> bool:
    return all(np.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


def test_the_module_holds_the_trained_values_and_a_second_run_goes_on_from_them():
    trainer = make_trainer()

    first = trainer.train(1, DATA)
    assert close(values(trainer), by_hand(3))
    trainer.train(1, DATA)

    assert close(values(trainer), by_hand(6))
    assert (first.status, first.step, first.epoch) == ("completed", 3, 1)
    assert str(first) == "completed after step 3 of epoch 1"


def test_optimizer_state_goes_on_too():
    once, twice = (make_trainer(optimizer=optax.sgd(0.1, momentum=0.5)) for _ in range(2))
    once.train(2, DATA)
    twice.train(1, DATA)
    twice.train(1, DATA)

    assert jax.tree.all(jax.tree.map(np.array_equal, values(once), values(twice)))


def test_a_failed_run_leaves_the_last_committed_step_and_the_error_reaches_everyone():
    told = []
    bad_luck = ValueError("bad luck")

    class Tells(Callback):
        def __init__(self, name, fails=False):
            self.name, self.fails = name, fails

        def on_train_step_end(self, run_context):
            if self.fails and run_context.original_args().cur_step_num == 3:
                raise bad_luck

        def on_exception(self, run_context, error):
            told.append((self.name, error))
            if self.name == "a":
                raise RuntimeError("in on_exception")

        def __exit__(self, kind, error, traceback):
            told.append((self.name, kind))

    trainer = make_trainer()
    with pytest.raises(ValueError) as caught:
        trainer.train(2, DATA, [Tells("a"), Tells("b", True), Tells("c")])

    assert caught.value is bad_luck
    assert told[:3] == [("a", bad_luck), ("b", bad_luck), ("c", bad_luck)]
    assert told[3:] == [("c", ValueError), ("b", ValueError), ("a", ValueError)]
    assert close(values(trainer), by_hand(2))


def test_an_exit_that_swallows_the_error_leaves_a_failed_result():
    class Swallows(Callback):
        def on_train_step_end(self, run_context):
            raise ValueError("bad luck")

        def __exit__(self, kind, error, traceback):
            return True

    result = make_trainer().train(1, DATA, Swallows())

    assert (result.status, result.by) == ("failed", "Swallows")
    assert isinstance(result.error, ValueError)


@pytest.mark.parametrize("policy", ["stop", "detach"])
def test_other_error_policies_keep_the_run_alive(policy):
    class Fails(Callback):
        on_error = policy

        def on_train_step_end(self, run_context):
            raise ValueError("bad luck")

    result = make_trainer().train(1, DATA, Fails())

    assert result.status == ("stopped" if policy == "stop" else "completed")
    assert result.step == (1 if policy == "stop" else 3)
    assert result.stats.callbacks["Fails"].errors == 1


def test_eval_inside_a_hook_evaluates_that_event():
    found = []

    class Evaluates(Callback):
        def on_train_step_end(self, run_context):
            found.append(trainer.eval(DATA)["mse"])
            found.append(trainer.eval(DATA)["mse"])

    trainer = make_trainer()
    before = trainer.eval(DATA)["mse"]
    trainer.train(1, DATA, Evaluates())

    assert found[0] == found[1] and found[2] == found[3]
    assert len({before, *found}) == 4
    assert found[-1] == trainer.eval(DATA)["mse"]


def test_training_inside_a_hook_is_refused():
    class Trains(Callback):
        def on_train_begin(self, run_context):
            trainer.train(1, DATA)

    trainer = make_trainer()
    with pytest.raises(RailbusError, match="training already"):
        trainer.train(1, DATA, Trains())


def test_fit_measures_with_batch_statistics_and_dropout():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.drop = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
            self.out = nnx.Linear(3, 2, rngs=rngs)

        def __call__(self, x):
            return self.out(self.drop(self.norm(x)))

    net = Net(nnx.Rngs(0))
    before = np.asarray(net.norm.mean[...])
    result = Trainer(net, squared, optax.sgd(0.1), {"mse", "loss"}).fit(2, DATA, DATA)

    assert not np.array_equal(before, np.asarray(net.norm.mean[...]))
    assert set(result.metrics) == {"mse", "loss", "eval_loss"}
    assert result.metrics["loss"] == pytest.approx(result.metrics["mse"])
    assert [epoch["epoch"] for epoch in result.history] == [1, 2]


def test_init_apply_objects_loss_with_aux_and_networks_that_give_the_loss():
    class Functional:
        def init(self, rng, *inputs):
            return {"w": jnp.zeros((3, 2), jnp.float32)}

        def apply(self, params, *inputs):
            if len(inputs) == 2:
                return squared(inputs[0] @ params["w"], inputs[1])
            return inputs[0] @ params["w"]

    outputs = []

    class Reads(Callback):
        def on_train_step_end(self, run_context):
            outputs.append(run_context.original_args().net_outputs)

    def with_aux(out, y):
        return jnp.square(out - y).mean(-1), out.sum()

    aux = Trainer(Functional(), with_aux, optax.sgd(0.1))
    aux.train(1, DATA, Reads())
    whole = Trainer(Functional(), None, optax.sgd(0.1))
    whole.train(1, DATA)

    assert len(outputs[0]) == 2 and outputs[0][0].shape == ()
    assert np.allclose(aux.params["w"], whole.params["w"], atol=1e-6)
    assert np.allclose(aux.predict(DATA[0][0]), DATA[0][0] @ np.asarray(aux.params["w"]), atol=1e-5)


async def test_start_fit_runs_beside_the_caller_and_stops_when_asked():
    trainer = make_trainer()
    steps = 0
    with anyio.fail_after(60):
        async with trainer.start_fit(10**6, DATA, DATA) as run:
            async for event in run.events({"on_train_step_end"}):
                assert event.run_id == run.run_id
                steps += 1
                if steps == 5:
                    run.request_stop("asked by the operator")
            result = await run.wait()

    assert (result.status, result.by) == ("stopped", "operator")
    assert result.reason == "asked by the operator"


async def test_train_works_inside_a_running_loop_and_in_an_asgi_handler():
    trainer = make_trainer()

    async def app(scope, receive, send):
        result = await to_thread.run_sync(lambda: make_trainer().train(1, DATA))
        await send({"type": "http.response.body", "body": str(result).encode()})

    sent = []

    async def send(message):
        sent.append(message)

    with anyio.fail_after(60):
        direct = trainer.train(1, DATA)
        await app({"type": "http"}, None, send)

    assert direct.step == 3
    assert sent[0]["body"] == b"completed after step 3 of epoch 1"


async def test_two_runs_at_once_on_one_bus():
    bus = EventBus()
    one, two = make_trainer(bus=bus), make_trainer(bus=bus)
    with anyio.fail_after(60):
        async with (
            one.start_train(5, DATA, run_id="one") as first,
            two.start_train(5, DATA, run_id="two") as second,
        ):
            results = [await first.wait(), await second.wait()]

    assert [result.step for result in results] == [15, 15]
    assert jax.tree.all(jax.tree.map(np.array_equal, values(one), values(two)))
    assert set(bus.runs) == {"one", "two"}


async def test_an_error_in_the_body_stops_the_run_and_comes_out_alone():
    trainer = make_trainer()
    with anyio.fail_after(60), pytest.raises(LookupError, match="mine"):
        async with trainer.start_train(10**6, DATA):
            raise LookupError("mine")

    assert trainer.train(1, DATA).status == "completed"


async def test_the_error_of_a_callback_comes_out_of_the_block_alone():
    class Fails(Callback):
        async def on_train_step_end(self, run_context):
            raise LookupError("theirs")

    with anyio.fail_after(60), pytest.raises(LookupError, match="theirs"):
        async with make_trainer().start_train(1, DATA, [Fails()]):
            pass
