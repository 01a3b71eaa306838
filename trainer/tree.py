"""Trees of arrays: their structure, shapes and size."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def same_structure(one: Any, other: Any) -> bool:
    """Whether two trees differ in their leaves only."""
    first: Any = jax.tree.structure(one)
    return bool(first == jax.tree.structure(other))


def shapes_of(tree: Any) -> Any:
    """Shape and dtype in the place of each array."""
    return jax.eval_shape(lambda: tree)


def bytes_of(tree: Any) -> int:
    """What its arrays take in memory."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def strong(tree: Any) -> Any:
    """The same values as arrays, none of a weak type, which a checkpoint cannot hold."""

    def one(leaf: Any) -> Any:
        array = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
        weak = getattr(array, "weak_type", False)
        return lax.convert_element_type(array, array.dtype) if weak else array

    return jax.tree.map(one, tree)
