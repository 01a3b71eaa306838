"""Runs whose every visible trace is kept, to compare run-ahead with lockstep."""

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from railbus.bus import EventBus
from railbus.schemas import Hook
from railbus.schemas.errors import RailbusError
from railbus.subscribers import Callback
from railbus.trainer import ArrayDataset, RunAhead, Trainer, save_checkpoint
from railbus.trainer.program import TrainState

HOOKS = [hook.value for hook in Hook if hook is not Hook.EXCEPTION]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(36, 3)).astype(np.float32)
Y = RNG.normal(size=(36, 1)).astype(np.float32)
BATCH = 4


class Linear:
    def init(self, rng: Any, inputs: Any) -> Any:
        return {"w": jnp.full((3, 1), 0.5, jnp.float32)}

    def apply(self, params: Any, inputs: Any) -> Any:
        return inputs @ params["w"]


class Noisy(nnx.Module):
    """Statistics and random keys move with each of its steps."""

    def __init__(self) -> None:
        self.first = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(1))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(2))
        self.last = nnx.Linear(4, 1, rngs=nnx.Rngs(3))

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def squared(outputs: Any, labels: Any) -> Any:
    return jnp.square(outputs - labels).mean()


def with_outputs(outputs: Any, labels: Any) -> Any:
    return squared(outputs, labels), {"outputs": outputs}


def falling(count: Any) -> Any:
    return 0.1 / (1.0 + count.astype(jnp.float32))


class Kind:
    """A trainer that can be set back to its first state, so that it is compiled once."""

    def __init__(self, network: Any, loss_fn: Any, optimizer: Any) -> None:
        self.trainer = Trainer(network, loss_fn, optimizer, {"loss"})
        values = self.trainer._values((X[:BATCH],))
        self.begin = TrainState(values, self.trainer._program.init_optimizer(values))

    def reset(self, run_ahead: RunAhead) -> Trainer:
        trainer = self.trainer
        trainer._adapted.store(self.begin.network)
        trainer._state, trainer.run_ahead, trainer.bus = self.begin, run_ahead, EventBus()
        return trainer


sgd = optax.inject_hyperparams(optax.sgd)
KINDS = {
    "linear": Kind(Linear(), squared, sgd(learning_rate=0.1, momentum=0.9)),
    "scheduled": Kind(Linear(), with_outputs, sgd(learning_rate=falling)),
    "noisy": Kind(Noisy(), squared, sgd(learning_rate=0.1)),
}


class Failed(Exception):
    """A callback has raised."""


class Act(Callback):
    """Does what its script says, `{(hook, occurrence): (act, value)}`, and notes what it saw."""

    def __init__(self, script: dict[tuple[str, int], tuple[str, Any]], on_error: Any) -> None:
        self.script, self.on_error = script, on_error
        self.evaluate: Any = dict
        self.seen: list[Any] = []
        self.counts = dict.fromkeys(HOOKS, 0)
        for hook in HOOKS:
            setattr(self, hook, self._hook(hook))

    def on_exception(self, run_context, error):
        self.seen.append(("on_exception", repr(error)))

    def _hook(self, hook: str) -> Any:
        def run(run_context):
            self.counts[hook] += 1
            params = run_context.original_args()
            self.seen.append((hook, sorted(params), run_context.get_stop_requested()))
            act, value = self.script.get((hook, self.counts[hook]), ("", None))
            if act:
                self._do(act, value, run_context, params)

        return run

    def _do(self, act: str, value: Any, run_context: Any, params: Any) -> None:
        if act == "stop":
            run_context.request_stop("why", value)
        elif act == "set":
            params[value] = params.get("cur_step_num", -1)
        elif act == "delete":
            params.pop(value, None)
        elif act == "rate" and "learning_rate" in params:
            params.learning_rate = value
        elif act == "scale":
            scaled = jax.tree.map(lambda leaf: leaf * value, params.train_network.params)
            params.train_network = scaled
        elif act == "eval":
            self.seen.append(self.evaluate())
        elif act == "look":
            network = params.train_network
            self.seen.append(bits((network.params, network.state, params.optimizer.state)))
        elif act == "save":
            saved = save_checkpoint(params.train_network, value)
            self.seen.append(hashlib.sha256(saved.read_bytes()).hexdigest())
        elif act == "raise":
            raise Failed(f"at {params.cur_step_num}")


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in map(plain, jax.tree.leaves(tree))]


def plain(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


def batches(samples: int) -> list[tuple[Any, Any]]:
    ends = [(k, min(k + BATCH, samples)) for k in range(0, samples, BATCH)]
    return [(X[begin:end], Y[begin:end]) for begin, end in ends]


class Renewed:
    """Each of its iterations is a generator."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from batches(self.samples)


def failing(samples: int) -> Iterator[Any]:
    yield from batches(samples)
    raise OSError("the disk is gone")


def make_data(kind: str, samples: int) -> Any:
    if kind == "arrays":
        return ArrayDataset(X[:samples], Y[:samples], batch_size=BATCH, shuffle=True)
    if kind == "iterator":
        return iter(batches(samples))
    if kind == "failing":
        return failing(samples)
    if kind == "renewed":
        return Renewed(samples)
    return batches(samples)


def trace(shape: dict[str, Any], scripts: Any, run_ahead: RunAhead) -> dict[str, Any]:
    """All that can be seen of a run, and of where it has left its data."""
    kind = KINDS[shape["kind"]]
    trainer, data = kind.reset(run_ahead), make_data(shape["data"], shape["samples"])
    once = shape["data"] in ("iterator", "failing")
    epochs = shape["initial"] + (1 if once else shape["epochs"])
    valid: Any = batches(shape["valid"])
    if shape["valid"] == 9:
        valid = ArrayDataset(X, Y, batch_size=BATCH, shuffle=True)
    acts = [Act(script, policy) for script, policy in scripts]
    found: dict[str, Any] = {}
    for act in acts:
        act.evaluate = lambda: trainer.eval(batches(8) if once else data)
    try:
        result = trainer.fit(
            epochs, data, valid or None, shape["frequency"], acts,
            initial_epoch=shape["initial"], run_id="run",
            dataset_sink_mode=shape["sink"],
        )  # fmt: skip
    except (Failed, OSError, RailbusError) as error:
        found["error"] = repr(error)
    else:
        found["result"] = (str(result), result.status, result.by, result.at, result.epoch)
        found["measured"] = (result.metrics, result.history)
    log = trainer.bus.runs["run"].entries()
    found["log"] = [(one.event.seq, one.event.hook, one.event.snapshot) for one in log]
    found["decisions"] = [one.decision for one in log]
    found["seen"] = [act.seen for act in acts]
    found["state"] = bits(trainer._state)
    found["data"] = rest(trainer, data, once), getattr(valid, "epoch", None)
    return found


def rest(trainer: Trainer, data: Any, once: bool) -> Any:
    """What the next run over the same data would be given."""
    if isinstance(data, ArrayDataset):
        return data.epoch
    if not once:
        return None
    rows: list[bytes] = []

    class Keep(Callback):
        def on_train_step_end(self, run_context):
            rows.append(run_context.original_args().train_dataset_element[0].tobytes())

    try:
        trainer.train(1, data, Keep())
    except (OSError, ValueError) as error:
        rows.append(type(error).__name__.encode())
    return rows
