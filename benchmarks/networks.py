"""The networks of the benchmarks, their data, and how long one measured run of each is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from railbus.trainer import ArrayDataset

BATCH = 64
CLASSES = 10


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


class Cnn(nnx.Module):
    """Two convolutions with batch norm and max pooling, dropout, one dense layer."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.first_norm = nnx.BatchNorm(8, rngs=rngs)
        self.second = nnx.Conv(8, 16, (3, 3), rngs=rngs)
        self.second_norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(7 * 7 * 16, CLASSES, rngs=rngs)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Logits."""
        inputs = nnx.relu(self.first_norm(self.first(inputs)))
        inputs = nnx.max_pool(inputs, (2, 2), (2, 2))
        inputs = nnx.relu(self.second_norm(self.second(inputs)))
        inputs = nnx.max_pool(inputs, (2, 2), (2, 2))
        return self.dense(self.dropout(inputs.reshape(len(inputs), -1)))


@dataclass(frozen=True)
class Case:
    """A network and the runs in which it is measured.

    Attributes:
        build: makes the network anew.
        shape: of one sample.
        steps: batches per epoch.
        epochs: of a measured run; many where a step is short, so that a run's fixed costs and the
            growing of its first blocks weigh as little as they do in training.
        few: epochs of the candidates that are several times slower and shown only.
    """

    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    steps: int
    epochs: int
    few: int

    def data(self) -> ArrayDataset:
        """Random samples of the right shape, the same in every process."""
        rng = np.random.default_rng(0)
        samples = BATCH * self.steps
        inputs = rng.standard_normal((samples, *self.shape), dtype=np.float32)
        labels = rng.integers(CLASSES, size=samples).astype(np.int32)
        return ArrayDataset(inputs, labels, batch_size=BATCH)


SMALL, LARGE, CNN = "MLP 64-32-32-10", "MLP 784-512-512-10", "CNN 28x28x1"


def small(epochs: int, few: int, steps: int = 938) -> Case:
    """The network whose step is shorter than a host round trip."""
    return Case(SMALL, lambda: Mlp((64, 32, 32, CLASSES)), (64,), steps, epochs, few)


def cases(quick: bool) -> tuple[Case, Case, Case]:
    """Small, large and convolutional."""
    large = Case(
        LARGE,
        lambda: Mlp((784, 512, 512, CLASSES)),
        (784,),
        *((40, 1, 1) if quick else (938, 2, 1)),
    )
    cnn = Case(CNN, Cnn, (28, 28, 1), *((10, 1, 1) if quick else (100, 1, 1)))
    return small(*((2, 1) if quick else (40, 4))), large, cnn


def loss_fn(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def optimizer() -> optax.GradientTransformation:
    """The same for all."""
    return optax.sgd(1e-2)
