"""Parameters that a callback keeps: copies on the device, and their form in its state."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from railbus.schemas.errors import ArgumentError


def copied(params: Any) -> Any:
    """Arrays of its own: with `exact=False` the next block overwrites those of the run."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(jnp.copy, params)


def shapes_of(params: Any) -> Any:
    """Shape and dtype in the place of each array."""
    import jax

    return jax.eval_shape(lambda: params)


def pack_weights(params: Any) -> dict[str, Any]:
    """`params` as nested dicts of numpy arrays, with str for every key and place."""
    import jax

    packed: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        *outer, last = _names(path)
        inner = packed
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = np.asarray(leaf)
    return packed


def unpack_weights(packed: Mapping[str, Any], like: Any) -> Any:
    """What `pack_weights` was given, in the structure of `like`.

    Raises:
        ArgumentError: it is that of another network; names the first array that differs.
    """
    import jax
    import jax.numpy as jnp

    def one(path: Any, leaf: Any) -> Any:
        found: Any = packed
        for name in _names(path):
            found = found.get(name) if isinstance(found, Mapping) else None
        if getattr(found, "shape", None) != leaf.shape:
            raise ArgumentError(
                f"the state holds no array of shape {leaf.shape} for parameter "
                f"{'/'.join(_names(path))}; it is that of another network"
            )
        return jnp.asarray(np.asarray(found))

    return jax.tree.map_with_path(one, like)


def _names(path: Any) -> list[str]:
    import jax

    return [jax.tree_util.keystr((key,), simple=True) for key in path]
