"""A tree of arrays as leaves under dotted names ("layers.0.kernel"), and back."""

from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import unflatten_dict

from railbus.schemas.errors import ArgumentTypeError, CheckpointError

PyTree: TypeAlias = Any
Leaves: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, np.ndarray]


def leaves_of(tree: PyTree) -> Leaves:
    """The arrays of a tree, by name.

    Raises:
        ArgumentTypeError: it is no tree, but one thing.
        CheckpointError: two of them would have one name.
    """
    leaves: Leaves = {}
    found, structure = _flatten(tree)
    if structure == jax.tree.structure(0):
        expected = "a network, or a dict, list or tuple of arrays"
        raise ArgumentTypeError(f"got {type(tree).__name__}; expected {expected}")
    for name, leaf in found:
        if name in leaves:
            raise CheckpointError(f"two arrays would be named {name!r}; rename one of them")
        leaves[name] = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
    return leaves


def fill(tree: PyTree, leaves: Leaves) -> PyTree:
    """A tree built as `tree`, with these leaves."""
    found, structure = _flatten(tree)
    return structure.unflatten(
        old.replace(leaves[name]) if isinstance(old, nnx.Variable) else leaves[name]
        for name, old in found
    )


def nest(arrays: Arrays) -> dict[str, Any]:
    """The same arrays in nested dicts.

    Raises:
        CheckpointError: a name is that of an array and the beginning of another.
    """
    inner = {
        top for name in arrays for top in list(accumulate(name.split("."), "{}.{}".format))[:-1]
    }
    if both := inner & arrays.keys():
        raise CheckpointError(f"names of arrays and of folders of arrays: {sorted(both)}")
    return dict(unflatten_dict(arrays, sep="."))  # type: ignore[no-untyped-call]  # flax's own


def network_leaves(save_obj: PyTree) -> Leaves:
    """Those of a module, of an object with `params` and perhaps `state`, or of a tree."""
    if isinstance(save_obj, nnx.Module):
        return leaves_of(nnx.state(save_obj))
    if isinstance(save_obj, Mapping | list | tuple) or not hasattr(save_obj, "params"):
        return leaves_of(save_obj)
    state = getattr(save_obj, "state", None)
    return network_part(leaves_of({"params": save_obj.params, "state": state}))


def network_part(leaves: Leaves) -> Leaves:
    """Of {"params": ..., "state": ..., ...} the first two, named as in the network."""
    params = {name[7:]: leaf for name, leaf in leaves.items() if name.startswith("params.")}
    state = {name[6:]: leaf for name, leaf in leaves.items() if name.startswith("state.")}
    if both := params.keys() & state.keys():
        raise CheckpointError(f"in params and in state: {sorted(both)}; rename one of them")
    return params | state if params else leaves


def is_key(leaf: Any) -> bool:
    """Whether it is an array of PRNG keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def host(name: str, leaf: Any) -> np.ndarray:
    """The leaf, or a key's data, in native byte order, row after row.

    Raises:
        ArgumentTypeError: it is no array of numbers.
        CheckpointError: this process does not have all of it.
    """
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise ArgumentTypeError(f"{name!r} is {type(leaf).__name__}; expected an array")
    array: Any = leaf
    if is_key(leaf):
        array = jax.random.key_data(array)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        raise CheckpointError(f"{name!r} is spread over several processes; gather it first")
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise ArgumentTypeError(f"{name!r} is an array of {array.dtype}; expected numbers or bools")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def place(leaf: Any, old: Any) -> Any:
    """The leaf where `old` is: on its devices, or on the host."""
    # A copy: on CPU device_put may share memory with the array that the caller gets.
    return jax.device_put(jnp.array(leaf), old.sharding) if isinstance(old, jax.Array) else leaf


def check_fit(path: Path, wanted: Leaves, found: Leaves) -> None:
    """Compare names, types and shapes; `...` is wanted for any array.

    Raises:
        CheckpointError: what was found at `path` differs; names the first that do.
    """

    def kind(leaf: Any) -> str:
        return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"

    both = sorted(wanted.keys() & found.keys())
    faults = [f"{name!r} is missing" for name in sorted(wanted.keys() - found.keys())]
    faults += [f"{name!r} is unexpected" for name in sorted(found.keys() - wanted.keys())]
    kinds = [(name, kind(found[name]), kind(wanted[name])) for name in both]
    faults += [
        f"{name!r} is {got}, expected {want}"
        for name, got, want in kinds
        if got != want and wanted[name] is not ...
    ]
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise CheckpointError(f"'{path}' does not fit: {'; '.join(faults[:5])}{more}")


def _flatten(tree: PyTree) -> tuple[list[tuple[str, Any]], jax.tree_util.PyTreeDef]:
    found, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    return [(name(path), leaf) for path, leaf in found], structure
