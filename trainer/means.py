"""The metrics that go by a name: means over samples, on the device."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.spelling import near


class Mean(nnx.metrics.Metric):
    """A mean over samples; subclasses say of what.

    The sum and the number of samples are pairs of float32, a value and what rounding took from it
    (2Sum: Knuth, TAOCP 4.2.2), so that a mean stays exact over any number of batches.
    """

    def __init__(self) -> None:
        self.sums = nnx.metrics.MetricState(jnp.zeros((2, 2), jnp.float32))

    def reset(self) -> None:
        """Begin anew."""
        self.sums[...] = jnp.zeros((2, 2), jnp.float32)

    def add(self, total: jax.Array, samples: int) -> None:
        """Take in `samples` values that sum up to `total`."""
        value, rest = self.sums[...]
        more = jnp.stack([total.astype(jnp.float32), jnp.asarray(samples, jnp.float32)])
        near = value + more
        part = near - value
        rest = rest + ((value - (near - part)) + (more - part))
        after = near + rest
        shown = jnp.where(jnp.isfinite(near), after, near)
        self.sums[...] = jnp.stack([shown, rest - (after - near)])

    def add_each(self, values: jax.Array) -> None:
        """Take in one value per sample."""
        self.add(values.astype(jnp.float32).sum(), values.size)

    def compute(self) -> jax.Array:
        """The mean so far."""
        total, samples = self.sums[0]
        mean: jax.Array = total / samples
        return mean


class MeanLoss(Mean):
    """Mean loss over samples; a batch's scalar loss counts once for each of its samples."""

    def update(  # type: ignore[override]  # flax's own metrics name what they take, too
        self, *, values: Any, labels: Any, **_: Any
    ) -> None:
        """Take in a batch's loss: a scalar, or one value per example (pixel, token)."""
        loss = jnp.asarray(values)
        if loss.ndim:
            return self.add_each(loss)
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(labels)]
        samples = next((shape[0] for shape in shapes if shape), 1)
        return self.add(loss.astype(jnp.float32) * samples, samples)


class Accuracy(Mean):
    """How often the label's class is among the `k` classes with the highest outputs.

    Outputs are (..., classes); labels integers (...), or one-hot (..., classes).
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.k = k

    def update(  # type: ignore[override]  # flax's own metrics name what they take, too
        self, *, logits: Any, labels: Any, **_: Any
    ) -> None:
        """Take in a batch.

        Raises:
            ArgumentError, ArgumentTypeError: for shapes and types that do not go together.
        """
        name = "accuracy" if self.k == 1 else f"top_{self.k}_accuracy"
        outputs, labels = _arrays(name, logits, labels)
        classes = self._classes(name, outputs, labels)
        if self.k == 1:
            return self.add_each(outputs.argmax(axis=-1).astype(jnp.int32) == classes)
        best = jax.lax.top_k(outputs, self.k)[1].astype(jnp.int32)
        return self.add_each((best == classes[..., None]).any(axis=-1))

    def _classes(self, name: str, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        count, least = outputs.shape[-1] if outputs.ndim > 1 else 1, max(self.k, 2)
        if count < least:
            binary = "; for one output per sample there is nnx.metrics.Accuracy(threshold=0.5)"
            raise ArgumentError(
                f"{name} needs outputs (..., classes) of at least {least} classes, got the shape "
                f"{outputs.shape}{binary if count == 1 else ''}"
            )
        if labels.shape == outputs.shape:
            return labels.argmax(axis=-1).astype(jnp.int32)
        whole = jnp.issubdtype(labels.dtype, jnp.integer) or labels.dtype == jnp.bool_
        if labels.shape != outputs.shape[:-1] or not whole:
            raise ArgumentError(
                f"{name} of outputs {outputs.shape} needs integer labels {outputs.shape[:-1]} or "
                f"one-hot labels {outputs.shape}, got {labels.dtype} {labels.shape}"
            )
        return labels.astype(jnp.int32)


class Error(Mean):
    """The mean of the absolute or squared differences between outputs and labels."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def update(  # type: ignore[override]  # flax's own metrics name what they take, too
        self, *, logits: Any, labels: Any, **_: Any
    ) -> None:
        """Take in a batch.

        Raises:
            ArgumentError, ArgumentTypeError: shapes differ, or are not there.
        """
        outputs, labels = _arrays(self.name, logits, labels)
        if outputs.shape != labels.shape:
            raise ArgumentError(
                f"{self.name} compares one by one and needs equal shapes, got outputs "
                f"{outputs.shape} and labels {labels.shape}; reshape one of them"
            )
        difference = outputs.astype(jnp.float32) - labels.astype(jnp.float32)
        self.add_each(jnp.square(difference) if self.name == "mse" else jnp.abs(difference))


NAMED: dict[str, Callable[[], nnx.metrics.Metric]] = {
    "accuracy": Accuracy,
    "loss": MeanLoss,
    "mae": lambda: Error("mae"),
    "mse": lambda: Error("mse"),
}
TOP_K = re.compile(r"top_([1-9][0-9]*)_accuracy")


def named(name: str) -> nnx.metrics.Metric:
    """The metric that goes by `name`, upper or lower case (`MAE`).

    Raises:
        ArgumentError: no metric does; the message lists those that do.
        ArgumentTypeError: it is no str.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a metric's name must be a str, got {name!r}")
    if found := TOP_K.fullmatch(name.lower()):
        return Accuracy(int(found[1]))
    if name.lower() in NAMED:
        return NAMED[name.lower()]()
    known = [*NAMED, "top_<k>_accuracy"]
    hint = near(name.lower(), known)
    expected = f"{', '.join(known)}{hint and f'; {hint}'}"
    raise ArgumentError(f"no metric is named {name!r}, expected one of {expected}")


def _arrays(name: str, outputs: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    for what, value in (("outputs", outputs), ("labels", labels)):
        if not hasattr(value, "shape"):
            raise ArgumentTypeError(
                f"{name} needs one array of {what}, got a {type(value).__name__}; pass an object "
                f"whose update takes it"
            )
    return jnp.asarray(outputs), jnp.asarray(labels)
