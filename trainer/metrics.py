"""Metrics by name or by object: flax.nnx ones on the device, any other on the host."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeAlias

import jax
import numpy as np
from flax import nnx

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .means import MeanLoss as MeanLoss, named

State: TypeAlias = dict[str, nnx.State[Any, Any]]


class MetricSet:
    """The metrics of a trainer; those on the device are functions of a state.

    Args:
        metrics: objects with `reset`, `update` and `compute` by name. `flax.nnx.metrics.Metric`
            objects are copied and run on the device, any other is used as it is, on the host.

    Attributes:
        names: all of them, in the order of the results.

    Raises:
        ArgumentTypeError: an object lacks one of the three, or its `update` needs something else
            than `values`, `logits` and `labels`.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        for name, metric in metrics.items():
            _check(name, metric)
        self.names = tuple(metrics)
        self._keywords = {name: _keywords(name, one.update) for name, one in metrics.items()}
        self._host = {k: m for k, m in metrics.items() if not isinstance(m, nnx.metrics.Metric)}
        self._graphs: dict[str, Any] = {}
        self._origins: State = {}
        for name in self.names:
            if name not in self._host:
                self._graphs[name], self._origins[name] = _fresh(nnx.clone(metrics[name]))

    @classmethod
    def of(cls, metrics: Collection[str] | Mapping[str, Any] | None) -> Self:
        """From names (of a set in alphabetical order), a dict of name to object, or None.

        Raises:
            ArgumentError: an unknown name.
            ArgumentTypeError: neither names nor a dict, or an object that is no metric.
        """
        if isinstance(metrics, Mapping):
            return cls(metrics)
        if not isinstance(metrics, (set, frozenset, list, tuple, type(None))):
            raise ArgumentTypeError(
                f"metrics must be names, such as {{'accuracy'}}, or a dict of name to object, got "
                f"{metrics!r}"
            )
        made = {name: named(name) for name in metrics or ()}
        ordered = sorted(made) if isinstance(metrics, (set, frozenset)) else made
        return cls({name: made[name] for name in ordered})

    @property
    def on_host(self) -> bool:
        """Whether some of them need loss, outputs and labels on the host."""
        return bool(self._host)

    def init(self) -> State:
        """The device's state before the first batch."""
        made = {}
        for name, graph in self._graphs.items():
            made[name] = _fresh(nnx.merge(graph, self._origins[name], copy=True))[1]
        return made

    def update(self, state: State, *, loss: Any, outputs: Any, labels: Any) -> State:
        """The state after one more batch; may be traced.

        Raises:
            ArgumentError: a metric cannot take these shapes, or keeps state outside its Variables.
        """
        given = {"values": loss, "logits": outputs, "labels": labels}
        after = {}
        for name, graph in self._graphs.items():
            metric = nnx.merge(graph, state[name], copy=True)
            with _lenient():
                metric.update(**{key: given[key] for key in self._keywords[name]})
            changed, after[name] = nnx.split(metric)
            if changed != graph:
                raise ArgumentError(
                    f"metric {name!r} changes attributes in update that are no nnx.Variable, so "
                    f"the change would be lost; keep them in nnx.metrics.MetricState"
                )
        return after

    def reset(self) -> None:
        """The host's metrics begin anew."""
        for metric in self._host.values():
            metric.reset()

    def update_host(self, loss: Any, outputs: Any, labels: Any) -> None:
        """One more batch for the host's metrics, as numpy arrays."""
        given = {"values": loss, "logits": outputs, "labels": labels}
        for name, metric in self._host.items():
            metric.update(**{key: given[key] for key in self._keywords[name]})

    def compute(self, state: State) -> dict[str, Any]:
        """Results by name: floats, numpy arrays where not scalar, dicts of these."""
        made = {}
        for name in self.names:
            if name in self._host:
                made[name] = _plain(self._host[name].compute())
                continue
            metric = nnx.merge(self._graphs[name], state[name], copy=True)
            with _lenient():
                made[name] = _plain(metric.compute())
        return made


def _check(name: Any, metric: Any) -> None:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a metric's name must be a str, got {name!r}")
    if isinstance(metric, type):
        raise ArgumentTypeError(
            f"metric {name!r} is the class {metric.__name__}, expected an object: "
            f"{metric.__name__}()"
        )
    missing = [it for it in ("reset", "update", "compute") if not callable(getattr(metric, it, 0))]
    if missing:
        hint = "; names go into a set, such as {'accuracy'}" if isinstance(metric, str) else ""
        raise ArgumentTypeError(
            f"metric {name!r} must have reset, update and compute, got {metric!r} without "
            f"{', '.join(missing)}{hint}"
        )


def _keywords(name: str, update: Callable[..., Any]) -> tuple[str, ...]:
    """Which of `values`, `logits` and `labels` a metric's `update` takes."""
    given = ("values", "logits", "labels")
    parameters = inspect.signature(update).parameters
    kinds = inspect.Parameter
    for key, one in parameters.items():
        free = one.kind in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL) or one.default is not one.empty
        if not free and (key not in given or one.kind is kinds.POSITIONAL_ONLY):
            raise ArgumentTypeError(
                f"metric {name!r} has an update that needs {key!r}, expected a choice of the "
                f"keywords {', '.join(given)}"
            )
    if any(one.kind is kinds.VAR_KEYWORD for one in parameters.values()):
        return given
    return tuple(key for key in given if key in parameters)


def _fresh(metric: Any) -> tuple[Any, nnx.State[Any, Any]]:
    """Graph and state of a metric that has seen nothing."""
    with _lenient():
        metric.reset()
    return nnx.split(metric)


@contextmanager
def _lenient() -> Iterator[None]:
    """JAX's default promotion for metrics' code; flax's own fails where the user chose strict."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _plain(value: Any) -> Any:
    """A result on the host, its dataclasses (flax's `Statistics`) as dicts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return jax.tree.map(_plain_leaf, value)


def _plain_leaf(leaf: Any) -> Any:
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUMmT":
        return leaf
    return array if array.ndim or array.dtype.kind == "c" else float(array)
