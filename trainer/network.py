"""What can be trained: flax.nnx modules and objects with `init` and `apply`, as pure functions."""

from typing import Any, NamedTuple, Protocol

import jax
from flax import nnx

from railbus.schemas.errors import ArgumentTypeError


class Values(NamedTuple):
    """A network's arrays: trained ones, and those that a forward pass changes (statistics, RNGs)."""

    params: Any
    rest: Any


class Network(Protocol):
    """A network as the compiled step calls it."""

    source: Any

    def init(self, key: jax.Array, inputs: tuple[Any, ...]) -> Values:
        """Its values before the first step."""

    def apply(self, values: Values, inputs: tuple[Any, ...], *, training: bool) -> tuple[Any, Any]:
        """Its outputs, and `rest` after the pass; may be traced."""

    def store(self, values: Values) -> None:
        """Hand trained values back to the user's object."""


def adapt(network: Any) -> Network:
    """`network` for the compiled step.

    Raises:
        ArgumentTypeError: it is neither an nnx module nor has `init` and `apply`.
    """
    if isinstance(network, nnx.Module):
        return NnxNetwork(network)
    if callable(getattr(network, "init", None)) and callable(getattr(network, "apply", None)):
        return FunctionalNetwork(network)
    raise ArgumentTypeError(
        f"network must be a flax.nnx module or have init(rng, *inputs) and apply(params, *inputs), "
        f"got {network!r}"
    )


class NnxNetwork:
    """A flax.nnx module; its train and eval modes are two graphs over the same values."""

    def __init__(self, module: nnx.Module) -> None:
        self.source = module
        self._modes: dict[bool, Any] = {}
        for training in (True, False):
            copy: Any = nnx.merge(*nnx.split(module))
            copy.train() if training else copy.eval()
            self._modes[training] = _split(copy)

    def init(self, key: jax.Array, inputs: tuple[Any, ...]) -> Values:
        """What the module holds now."""
        _, params, rest = _split(self.source)
        return Values(nnx.to_pure_dict(params), nnx.to_pure_dict(rest))

    def apply(self, values: Values, inputs: tuple[Any, ...], *, training: bool) -> tuple[Any, Any]:
        """A forward pass in the mode asked for."""
        graph, params, rest = self._modes[training]
        module: Any = nnx.merge(graph, *_filled(params, rest, values))
        outputs = module(*inputs)
        return outputs, nnx.to_pure_dict(_split(module)[2])

    def store(self, values: Values) -> None:
        """The module holds the trained values."""
        _, params, rest = _split(self.source)
        nnx.update(self.source, *_filled(params, rest, values))


def _split(module: nnx.Module) -> tuple[Any, Any, Any]:
    """The module's graph, its parameters, and the rest of its state."""
    found: Any = nnx.split(module, nnx.Param, ...)
    return found[0], found[1], found[2]


def _filled(params: Any, rest: Any, values: Values) -> tuple[Any, Any]:
    """States like `params` and `rest` that hold `values`."""
    params, rest = jax.tree.map(lambda leaf: leaf, (params, rest))
    nnx.replace_by_pure_dict(params, values.params)
    nnx.replace_by_pure_dict(rest, values.rest)
    return params, rest


class FunctionalNetwork:
    """An object with `init(rng, *inputs)` and `apply(params, *inputs)`, such as a flax.linen one."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def init(self, key: jax.Array, inputs: tuple[Any, ...]) -> Values:
        """What its `init` gives."""
        return Values(self.source.init(key, *inputs), {})

    def apply(self, values: Values, inputs: tuple[Any, ...], *, training: bool) -> tuple[Any, Any]:
        """What its `apply` gives; it has no modes."""
        return self.source.apply(values.params, *inputs), values.rest

    def store(self, values: Values) -> None:
        """Its values live in `trainer.params`."""
