"""What a step costs: a plain jitted loop that reads each loss, and lockstep Railbus around it.

Prints microseconds per step, medians of interleaved runs on this machine. On a CPU compare the
rows of one table with one another, not with another machine's.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from railbus.subscribers import Callback, RunContext
from railbus.trainer import ArrayDataset, Trainer

BATCH = 64
NETWORKS = ((64, 32, 32, 10), (784, 512, 512, 10))
ALLOWED_US = 150


class Mlp:
    """A plain network as (init, apply)."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    def init(self, rng: jax.Array, inputs: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        """Weights and biases of each layer."""
        keys = jax.random.split(rng, len(self.sizes))
        layers = zip(keys, self.sizes, self.sizes[1:], strict=False)
        return [(jax.random.normal(key, (a, b)) / a**0.5, jnp.zeros(b)) for key, a, b in layers]

    def apply(self, params: list[tuple[jax.Array, jax.Array]], inputs: jax.Array) -> jax.Array:
        """Logits."""
        for weight, bias in params[:-1]:
            inputs = jax.nn.relu(inputs @ weight + bias)
        weight, bias = params[-1]
        return inputs @ weight + bias


class ReadLoss(Callback):
    """Reads the loss at every step, as a monitor does."""

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Read it."""
        self.loss = float(run_context.original_args().net_outputs)


def loss_fn(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def plain_loop(network: Mlp, data: ArrayDataset) -> Callable[[], float]:
    """The limit: the same step, jitted, with nothing around it; returns seconds per step."""
    optimizer = optax.sgd(1e-2)

    @jax.jit
    def step(state, inputs, labels):  # type: ignore[no-untyped-def]
        params, opt_state = state
        loss, grads = jax.value_and_grad(lambda p: loss_fn(network.apply(p, inputs), labels))(
            params
        )
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    params = network.init(jax.random.key(0), jnp.zeros((BATCH, network.sizes[0])))
    start = (params, optimizer.init(params))

    def run() -> float:
        state, read = start, []
        began = time.perf_counter()
        for inputs, labels in data:
            state, loss = step(state, inputs, labels)
            read.append(float(loss))
        return (time.perf_counter() - began) / len(read)

    return run


def railbus(network: Mlp, data: ArrayDataset, callbacks: int) -> Callable[[], float]:
    """The same steps by `Trainer.train`; returns seconds per step."""
    trainer = Trainer(network, loss_fn, optax.sgd(1e-2))

    def run() -> float:
        stats = trainer.train(1, data, [ReadLoss() for _ in range(callbacks)]).stats
        return stats.seconds / stats.steps

    return run


def measure(candidates: dict[str, Callable[[], float]], runs: int) -> dict[str, float]:
    """Median microseconds per step of each, over `runs` interleaved runs after a warm-up."""
    for candidate in candidates.values():
        candidate()
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(runs):
        for name, candidate in candidates.items():
            found[name].append(candidate() * 1e6)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=938)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}, batch {BATCH}, "
        f"{arguments.steps} steps, medians of {arguments.runs} interleaved runs"
    )
    print(f"{'network':<16}{'loop':<28}{'us/step':>9}{'over plain':>12}")
    for sizes in NETWORKS:
        network = Mlp(sizes)
        rng = np.random.default_rng(0)
        samples = BATCH * arguments.steps
        inputs = rng.normal(size=(samples, sizes[0])).astype(np.float32)
        labels = rng.integers(10, size=samples).astype(np.int32)
        data = ArrayDataset(inputs, labels, batch_size=BATCH)
        plain = "plain jitted, reads the loss"
        medians = measure(
            {
                plain: plain_loop(network, data),
                "lockstep, 0 callbacks": railbus(network, data, 0),
                "lockstep, 3 callbacks": railbus(network, data, 3),
            },
            arguments.runs,
        )
        for name, median in medians.items():
            over = "" if name == plain else f"{median - medians[plain]:+12.0f}"
            print(f"{'-'.join(map(str, sizes)):<16}{name:<28}{median:9.0f}{over}")
        cost = medians["lockstep, 3 callbacks"] - medians[plain]
        verdict = "within" if cost <= ALLOWED_US else "OVER"
        print(f"{'':<16}3 callbacks cost {cost:.0f} us a step, {verdict} the {ALLOWED_US} allowed")


if __name__ == "__main__":
    main()
