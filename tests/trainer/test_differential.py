"""The trainer against a plain interpreter: same hooks, same values, same parameters, bit for bit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

from railbus.schemas import Hook
from railbus.subscribers import Callback
from railbus.trainer import RunAhead, Trainer
from railbus.trainer.blocks import Runner
from railbus.trainer.hyperparams import replace
from railbus.trainer.network import Values
from railbus.trainer.program import Carry, TrainState

from .interpreter import Interpreter

HOOKS = [hook.value for hook in Hook if hook is not Hook.EXCEPTION]
RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.normal(size=(2, 3)).astype(np.float32), RNG.normal(size=(2, 1)).astype(np.float32))
    for _ in range(4)
]


class Linear:
    def init(self, rng, inputs):
        return {"w": jnp.full((3, 1), 0.5, jnp.float32)}

    def apply(self, params, inputs):
        return inputs @ params["w"]


TRAINER = Trainer(
    Linear(),
    lambda outputs, labels: jnp.square(outputs - labels).mean(),
    optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
    {"loss"},
)
PROGRAM = TRAINER._program  # its compiled steps serve the interpreter too
RUNNER = Runner(PROGRAM, True, {})


class Failed(Exception):
    """A callback has raised."""


class Act:
    """One callback's doings: `acts` maps (hook, occurrence) to what it does there."""

    def __init__(self, acts: dict[tuple[str, int], tuple[str, Any]]) -> None:
        self.acts, self.counts, self.seen = acts, dict.fromkeys(HOOKS, 0), []
        self.measured: list[float] = []

    def __call__(self, hook: str, params: Any, api: Any) -> None:
        self.counts[hook] += 1
        own = {key: params[key] for key in ("ka", "kb") if key in params}
        shown = {k: params[k] for k in ("cur_step_num", "cur_epoch_num") if k in params}
        numbers = {k: bits(params[k]) for k in ("net_outputs", "learning_rate") if k in params}
        metrics = sorted(params.get("metrics", {}))
        self.measured += [float(params["metrics"][name]) for name in metrics]
        self.seen.append((hook, own, shown, numbers, "metrics" in params, metrics, api.asked()))
        kind, value = self.acts.get((hook, self.counts[hook]), (None, None))
        if kind == "stop":
            api.stop("why", value)
        elif kind == "set":
            params[value] = hook
        elif kind == "delete" and value in params:
            del params[value]
        elif kind in ("learning_rate", "train_network"):
            api.trace(kind, value)
        elif kind == "raise":
            raise Failed(hook)


def bits(value: Any) -> bytes:
    value = value[0] if isinstance(value, (tuple, list)) else value
    return np.asarray(value, np.float32).tobytes()


class OnBus(Callback):
    """An `Act` as a callback."""

    def __init__(self, act: Act) -> None:
        self.act = act
        for hook in HOOKS:
            setattr(self, hook, self._hook(hook))

    def _hook(self, hook: str):
        def run(run_context):
            cb_params = run_context.original_args()

            class Api:
                asked = staticmethod(run_context.get_stop_requested)

                @staticmethod
                def stop(reason, scope):
                    run_context.request_stop(reason, scope)

                @staticmethod
                def trace(name, value):
                    cb_params[name] = weights(value) if name == "train_network" else value

            self.act(hook, cb_params, Api)

        return run


def weights(value: float) -> dict[str, Any]:
    return {"w": jnp.full((3, 1), value, jnp.float32)}


def in_loop(act: Act):
    """An `Act` as the interpreter calls it."""

    def run(interpreter: Interpreter, hook: str) -> None:
        class Api:
            asked = staticmethod(interpreter.asked)
            stop = staticmethod(interpreter.request_stop)

            @staticmethod
            def trace(name, value):
                interpreter.pending[name] = value
                if name == "learning_rate":
                    interpreter.params[name] = np.float32(value)

        act(hook, interpreter.params, Api)

    return run


def step(state, batch):
    carry, outputs = RUNNER.run("train", Carry(state), [batch])
    return carry.state, outputs.stacks().net_outputs.host()[0]


def evaluate(state, batch):
    _, outputs = RUNNER.run("eval", Carry(state), [batch])
    return outputs.stacks().mean.host()[0]


def patch(state, name, value):
    if name == "train_network":
        return TrainState(Values(weights(value), state.network.rest), state.optimizer)
    return TrainState(state.network, replace(state.optimizer, {name: value}))


WHAT = st.one_of(
    st.tuples(st.just("stop"), st.sampled_from([None, "train"])),
    st.tuples(st.sampled_from(["set", "set", "delete"]), st.sampled_from(["ka", "kb"])),
    st.tuples(st.just("learning_rate"), st.sampled_from([0.0, 0.05, 0.3])),
    st.tuples(st.just("train_network"), st.sampled_from([0.0, -1.0])),
    st.tuples(st.just("raise"), st.none()),
)
ACTS = st.dictionaries(st.tuples(st.sampled_from(HOOKS), st.integers(1, 4)), WHAT, max_size=4)
SHAPES = st.fixed_dictionaries(
    {
        "epochs": st.integers(1, 3),
        "initial": st.integers(0, 2),
        "batches": st.integers(1, 4),
        "valid": st.integers(0, 2),
        "frequency": st.sampled_from([1, 2, [1], [2, 3]]),
        "sized": st.booleans(),
    }
)


class Unsized:
    """Batches that do not tell how many they are."""

    def __init__(self, batches) -> None:
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def names(count: int) -> list[str]:
    return ["OnBus", *(f"OnBus#{k + 1}" for k in range(1, count))][:count]


AHEAD = st.builds(
    RunAhead, block_steps=st.none() | st.integers(1, 5), ahead=st.integers(0, 3), fuse=st.just(True)
)


@settings(max_examples=400)
@given(st.lists(ACTS, max_size=3), SHAPES, st.just(RunAhead.off()) | AHEAD)
def test_a_run_is_what_a_plain_loop_over_the_callbacks_would_be(scripts, shape, run_ahead):
    epochs = shape["initial"] + shape["epochs"]
    data, valid = BATCHES[: shape["batches"]], BATCHES[: shape["valid"]]
    frequency = shape["frequency"]

    def due(epoch):
        if not valid:
            return False
        return epoch % frequency == 0 if isinstance(frequency, int) else epoch in frequency

    begin = TrainState(Values(weights(0.5), {}), PROGRAM.init_optimizer(Values(weights(0.5), {})))
    expected = [Act(script) for script in scripts]
    loop = Interpreter(
        list(zip(names(len(expected)), map(in_loop, expected), strict=True)),
        step, evaluate, patch, begin, {"learning_rate": np.float32(0.1)},
    )  # fmt: skip
    failed = None
    try:
        loop.fit(epochs, shape["initial"], data, valid, due)
    except Failed as error:
        failed = str(error)

    TRAINER._state, TRAINER.run_ahead = begin, run_ahead
    got = [Act(script) for script in scripts]
    found, result = None, None
    try:
        result = TRAINER.fit(
            epochs,
            data if shape["sized"] else Unsized(data),
            valid or None,
            frequency,
            callbacks=list(map(OnBus, got)),
            initial_epoch=shape["initial"],
        )
    except Failed as error:
        found = str(error)

    assert found == failed
    for one, other in zip(got, expected, strict=True):
        assert one.seen == other.seen
        assert one.measured == pytest.approx(other.measured, rel=1e-5)
    final = jax.tree.map(np.asarray, (TRAINER.params, TRAINER._state.optimizer.hyperparams))
    reference = loop.committed
    wanted = jax.tree.map(np.asarray, (reference.network.params, reference.optimizer.hyperparams))
    assert jax.tree.map(np.ndarray.tobytes, final) == jax.tree.map(np.ndarray.tobytes, wanted)
    if result is not None:
        assert (result.by, result.reason) == (loop.ended_by or (None, None))
        assert result.status == ("stopped" if loop.ended_by else "completed")
