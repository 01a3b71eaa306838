"""Hyperparameters that `optax.inject_hyperparams` keeps in the optimizer's state."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp


def _is_injected(node: Any) -> bool:
    return hasattr(node, "hyperparams") and hasattr(node, "inner_state")


def _injected(state: Any) -> Iterator[Any]:
    """The states of `inject_hyperparams` within `state`, those inside another one too."""
    for node in jax.tree.leaves(state, is_leaf=_is_injected):
        if _is_injected(node):
            yield node
            yield from _injected(node.inner_state)


def values_of(state: Any) -> dict[str, Any]:
    """Injected hyperparameters by name; of two that share a name, the outer or first one."""
    found: dict[str, Any] = {}
    for node in _injected(state):
        for name, value in node.hyperparams.items():
            found.setdefault(name, value)
    return found


def scheduled(state: Any) -> frozenset[str]:
    """Names that a schedule sets anew at each step, so that an assignment would not last."""
    return frozenset(
        name for node in _injected(state) for name in getattr(node, "hyperparams_states", {})
    )


def replace(state: Any, values: dict[str, Any]) -> Any:
    """`state` with other values, of the same dtype and shape, for the names given."""

    def one(node: Any) -> Any:
        if not _is_injected(node):
            return node
        changed = {
            name: jnp.asarray(values[name], dtype=jnp.asarray(old).dtype) if name in values else old
            for name, old in node.hyperparams.items()
        }
        return node._replace(hyperparams=changed, inner_state=replace(node.inner_state, values))

    return jax.tree.map(one, state, is_leaf=_is_injected)
