"""Checkpoints on disk: one safetensors file, or an Orbax folder.

Both hold arrays under dotted names ("layers.0.kernel") and a header in JSON: the caller's metadata,
which arrays are the data of PRNG keys, and a checksum, since neither format has one. A checkpoint
appears under its name only when it is complete and on the disk.
"""

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from railbus.schemas.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    RailbusError,
)

PyTree: TypeAlias = Any

_ENDINGS = (".ckpt", ".safetensors")
_HEADER = "railbus"
_ORBAX_MARK = "_CHECKPOINT_METADATA"
_FILE_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    " float16 bfloat16 float32 float64 complex64".split()
)


class _Contents(NamedTuple):
    """What either kind holds; `keys` names the PRNG implementation of arrays that are key data."""

    arrays: dict[str, np.ndarray]
    keys: dict[str, str]


def save_checkpoint(
    save_obj: PyTree,
    ckpt_file_name: str | os.PathLike[str],
    *,
    append_dict: Mapping[str, object] | None = None,
) -> Path:
    """Write a network to one safetensors file, safely, and return its path.

    An existing file is replaced at once or not at all; missing folders are made.

    Args:
        save_obj: a `flax.nnx.Module`, an object with `params` and perhaps `state` (such as
            `cb_params.train_network`), or a tree of arrays.
        ckpt_file_name: gets the ending `.ckpt`, as in MindSpore, unless it ends in `.ckpt` or
            `.safetensors`.
        append_dict: JSON values to keep beside the arrays, for example `{"epoch_num": 3}`;
            `read_metadata` gives them back.

    Raises:
        ArgumentTypeError: `save_obj` or `append_dict` holds what a file cannot carry.
        CheckpointError: it cannot be written; a file that was there before is unharmed.
    """
    path = _path(ckpt_file_name)
    if not path.name.endswith(_ENDINGS):
        path = path.with_name(path.name + ".ckpt")
    contents = _network_contents(save_obj)
    for name, array in contents.arrays.items():
        if array.dtype.name not in _FILE_DTYPES:
            raise ArgumentTypeError(
                f"{name!r} is {array.dtype.name}, which a safetensors file cannot carry here"
            )
    header = _pack_header(contents, {} if append_dict is None else append_dict)
    temporary = _beside(path)
    with _translated("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_file(temporary, contents.arrays, header)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def load_checkpoint(
    ckpt_file_name: str | os.PathLike[str], net: nnx.Module | None = None
) -> dict[str, np.ndarray]:
    """The network's arrays by dotted name, from a safetensors file or an Orbax folder.

    What it is decides, not what it is called. PRNG keys come as their uint32 data. With `net`, its
    values are set too (keys as keys), all or none.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint, or does not fit `net`.
    """
    if net is not None and not isinstance(net, nnx.Module):
        raise ArgumentTypeError(f"net is {type(net).__name__}; expected a flax.nnx.Module")
    path = _path(ckpt_file_name)
    contents = _read(path)
    if path.is_dir():
        contents = _without_tops(contents)
    if net is not None:
        state = nnx.state(net)
        wanted, values = _leaves(state), _values(contents)
        _check_fit(path, wanted, values)
        nnx.update(net, _fill(state, {name: _place(values[name], wanted[name]) for name in wanted}))
    return contents.arrays


def write_tree(path: Path, tree: Mapping[str, PyTree], metadata: Mapping[str, object]) -> None:
    """Write an Orbax folder with the arrays of `tree` and JSON `metadata`.

    A checkpoint at `path` is replaced: while the folders are exchanged, there is for a moment none.

    Args:
        path: the folder to be.
        tree: for example `{"params": ..., "state": ..., "optimizer": ...}`.
        metadata: for example `{"epoch_num": 3, "step_num": 1200}`.
    """
    contents = _contents(tree)
    if empty := sorted(name for name, array in contents.arrays.items() if not array.size):
        raise CheckpointError(f"{', '.join(map(repr, empty))}: Orbax carries no empty arrays")
    nested = {str(top): {} for top in tree} | _nest(contents.arrays)
    header = _pack_header(contents, metadata)
    path = _path(path).absolute()
    if os.path.lexists(path) and not (path / _ORBAX_MARK).is_file():
        raise CheckpointError(f"'{path}' exists and is no Orbax checkpoint; it is left as it is")
    staging = _beside(path)
    with _translated("write", path):
        try:
            staging.mkdir(parents=True)
            _write_folder(staging / "new", nested, header)
            _exchange(staging / "new", path, staging / "old")
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def read_tree(path: Path, like: PyTree | None = None) -> PyTree:
    """The arrays of a checkpoint as numpy arrays in nested dicts, or in the structure of `like`.

    In nested dicts, lists are dicts too ("0", "1", ...) and PRNG keys are their uint32 data.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint, or does not fit `like`.
    """
    path = _path(path)
    contents = _read(path)
    if like is None:
        return _nest(contents.arrays)
    values = _values(contents)
    _check_fit(path, _leaves(like), values)
    return _fill(like, values)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write_tree` got as `metadata`, or `save_checkpoint` as `append_dict`."""
    metadata: dict[str, Any] = _read_header(_path(path))["metadata"]
    return metadata


def _path(name: str | os.PathLike[str]) -> Path:
    if not isinstance(name, (str, os.PathLike)):
        raise ArgumentTypeError(f"a checkpoint's name is {type(name).__name__}; expected a path")
    if not (path := Path(name)).name.strip():
        raise ArgumentError(f"{name!r} names no checkpoint; expected a file name")
    return path


# From objects to arrays by name.


def _is_variable(node: object) -> bool:
    return isinstance(node, nnx.Variable)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _leaves(tree: PyTree) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]:
        name = _name(path)
        if not path:
            raise ArgumentTypeError(
                f"{type(leaf).__name__} is no checkpoint's content; expected a flax.nnx.Module, "
                "an object with params, or a dict or list of arrays"
            )
        if name in leaves:
            raise CheckpointError(f"two arrays would be named {name!r}; rename one of them")
        leaves[name] = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
    return leaves


def _network_contents(save_obj: PyTree) -> _Contents:
    if isinstance(save_obj, nnx.Module):
        return _contents(nnx.state(save_obj))
    if not isinstance(save_obj, (Mapping, list, tuple)) and hasattr(save_obj, "params"):
        parts = {"params": save_obj.params, "state": getattr(save_obj, "state", None)}
        return _without_tops(_contents(parts))
    return _contents(save_obj)


def _contents(tree: PyTree) -> _Contents:
    contents = _Contents({}, {})
    for name, leaf in _leaves(tree).items():
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            impl = jax.random.key_impl(leaf)
            if not isinstance(impl, str):
                raise ArgumentTypeError(f"{name!r} is a key of an unregistered PRNG, {impl}")
            contents.keys[name] = impl
            leaf = jax.random.key_data(leaf)
        contents.arrays[name] = _host(name, leaf)
    if not contents.arrays:
        raise CheckpointError("there is nothing to save; expected at least one array")
    return contents


def _host(name: str, leaf: object) -> np.ndarray:
    """The leaf in native byte order, row after row."""
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        raise ArgumentTypeError(f"{name!r} is {type(leaf).__name__}; expected an array")
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise CheckpointError(f"{name!r} is spread over several processes; gather it first")
    dtype = leaf.dtype
    if not (jnp.issubdtype(dtype, np.number) or dtype == np.bool_):
        raise ArgumentTypeError(f"{name!r} is an array of {dtype}; expected numbers or bools")
    return np.asarray(leaf, dtype=dtype.newbyteorder("="), order="C")


def _without_tops(contents: _Contents) -> _Contents:
    """The network's part of {"params": ..., "state": ..., ...}, named as in the network."""
    if not any(name.startswith("params.") for name in contents.arrays):
        return contents
    network = [name for name in contents.arrays if name.startswith(("params.", "state."))]
    short = {name: name.partition(".")[2] for name in network}
    if twice := {one for one in short.values() if list(short.values()).count(one) > 1}:
        names = ", ".join(map(repr, sorted(twice)))
        raise CheckpointError(f"params and state both hold {names}; rename one of them")
    return _Contents(
        {short[name]: contents.arrays[name] for name in network},
        {short[name]: impl for name, impl in contents.keys.items() if name in short},
    )
