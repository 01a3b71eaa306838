"""Metrics by name or by object: flax.nnx ones on the device, any other on the host."""

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

TOP_K = re.compile(r"top_([1-9][0-9]*)_accuracy")


class Mean(nnx.metrics.Metric):  # type: ignore[misc]  # flax's Metric is untyped
    """A sum over samples and their number; subclasses say what is summed."""

    def __init__(self) -> None:
        self.total = nnx.metrics.MetricState(jnp.zeros((), jnp.float32))
        self.count = nnx.metrics.MetricState(jnp.zeros((), jnp.float32))

    def reset(self) -> None:
        """Begin anew."""
        self.total[...] = jnp.zeros((), jnp.float32)
        self.count[...] = jnp.zeros((), jnp.float32)

    def add(self, values: jax.Array) -> None:
        """Take in one value per sample."""
        self.total[...] += values.astype(jnp.float32).sum()
        self.count[...] += jnp.asarray(values.size, jnp.float32)

    def compute(self) -> jax.Array:
        """The mean so far."""
        return self.total[...] / self.count[...]


class MeanLoss(Mean):
    """Mean loss over samples; a batch's scalar loss counts once for each of its samples."""

    def update(self, *, values: jax.Array, labels: jax.Array, **_: Any) -> None:
        """Take in the loss of one batch, a scalar or one value per sample."""
        samples = labels.shape[0] if labels.ndim else 1
        self.add(jnp.broadcast_to(values, (samples,)) if values.ndim == 0 else values)


class _Accuracy(Mean):
    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.k = k

    def update(self, *, logits: jax.Array, labels: jax.Array, **_: Any) -> None:
        if logits.ndim < 1 or logits.shape[:-1] != labels.shape or logits.shape[-1] < self.k:
            raise ArgumentError(
                f"accuracy of the top {self.k} needs outputs (..., classes) and integer labels "
                f"(...), got {logits.shape} and {labels.shape}"
            )
        if self.k == 1:
            self.add(jnp.argmax(logits, -1) == labels)
        else:
            best = jax.lax.top_k(logits, self.k)[1]
            self.add((best == labels[..., None].astype(best.dtype)).any(-1))


class _Distance(Mean):
    def __init__(self, squared: bool) -> None:
        super().__init__()
        self.squared = squared

    def update(self, *, logits: jax.Array, labels: jax.Array, **_: Any) -> None:
        if logits.shape != labels.shape:
            raise ArgumentError(
                f"mae and mse compare outputs with labels one by one, got shapes "
                f"{logits.shape} and {labels.shape}"
            )
        difference = logits.astype(jnp.float32) - labels.astype(jnp.float32)
        self.add(jnp.square(difference) if self.squared else jnp.abs(difference))


NAMED: dict[str, Callable[[], nnx.metrics.Metric]] = {
    "accuracy": _Accuracy,
    "loss": MeanLoss,
    "mae": lambda: _Distance(squared=False),
    "mse": lambda: _Distance(squared=True),
}


def named(name: str) -> nnx.metrics.Metric:
    """The metric that goes by `name`.

    Raises:
        ArgumentError: no metric does; the message lists those that do.
    """
    if found := TOP_K.fullmatch(name):
        return _Accuracy(int(found[1]))
    if (make := NAMED.get(name.lower())) is not None:
        return make()
    near = difflib.get_close_matches(name, NAMED, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(
        f"no metric is named {name!r}, there are {', '.join(NAMED)}, top_<k>_accuracy{hint}"
    )


class MetricSet:
    """The metrics of a trainer; those on the device are functions of a state."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self.names = tuple(metrics)
        self._device = {k: m for k, m in metrics.items() if isinstance(m, nnx.metrics.Metric)}
        self._host = {k: m for k, m in metrics.items() if k not in self._device}
        self._graphs = {name: nnx.split(metric)[0] for name, metric in self._device.items()}

    @classmethod
    def of(cls, metrics: Collection[str] | Mapping[str, Any] | None) -> Self:
        """From names, or from a dict of name to object with `reset`, `update` and `compute`.

        Raises:
            ArgumentError: an unknown name.
            ArgumentTypeError: an object that lacks one of the three.
        """
        if isinstance(metrics, str) or not isinstance(metrics or (), Collection):
            raise ArgumentTypeError(
                f"metrics must be names or a dict of name to metric, got {metrics!r}"
            )
        if isinstance(metrics, Mapping):
            for name, metric in metrics.items():
                lacks = [it for it in ("reset", "update", "compute") if not hasattr(metric, it)]
                if lacks or isinstance(metric, type):
                    raise ArgumentTypeError(
                        f"metric {name!r} must be an object with reset, update and compute, got "
                        f"{metric!r}" + (f" without {', '.join(lacks)}" if lacks else "")
                    )
            return cls(metrics)
        names = sorted(metrics) if isinstance(metrics, (set, frozenset)) else list(metrics or ())
        for name in names:
            if not isinstance(name, str):
                raise ArgumentTypeError(f"a metric's name must be a str, got {name!r}")
        return cls({name: named(name) for name in names})

    @property
    def on_host(self) -> bool:
        """Whether some of them need outputs and labels on the host."""
        return bool(self._host)

    def init(self) -> dict[str, Any]:
        """The state of the device's metrics before the first batch; resets the host's."""
        for metric in (*self._device.values(), *self._host.values()):
            metric.reset()
        return {name: nnx.split(metric)[1] for name, metric in self._device.items()}

    def update(self, state: dict[str, Any], *, loss: Any, outputs: Any, labels: Any) -> Any:
        """The state after one more batch; may be traced."""
        after = {}
        given = {"values": loss, "logits": outputs, "labels": labels}
        for name, graph in self._graphs.items():
            metric = nnx.merge(graph, state[name])
            metric.update(**_accepted(metric.update, given))
            after[name] = nnx.split(metric)[1]
        return after

    def update_host(self, loss: Any, outputs: Any, labels: Any) -> None:
        """The same for the host's metrics, with numpy arrays."""
        given = {"values": loss, "logits": outputs, "labels": labels}
        for metric in self._host.values():
            metric.update(**_accepted(metric.update, given))

    def compute(self, state: dict[str, Any]) -> dict[str, Any]:
        """Results by name: floats, or numpy arrays where they are not scalar."""
        made = {}
        for name in self.names:
            if name in self._graphs:
                made[name] = nnx.merge(self._graphs[name], state[name]).compute()
            else:
                made[name] = self._host[name].compute()
        return {name: _plain(value) for name, value in made.items()}


def _accepted(update: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(update).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _plain(value: Any) -> Any:
    if isinstance(value, (str, dict, list, tuple)) or value is None:
        return value
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array
