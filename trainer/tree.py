"""Trees of arrays: their structure, shapes and size."""

from typing import Any

import jax


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
