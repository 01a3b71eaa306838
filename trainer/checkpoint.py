"""Checkpoints on disk: one safetensors file, or an Orbax folder.

Both hold arrays under dotted names ("layers.0.kernel") and a JSON header: the caller's metadata,
which arrays are data of PRNG keys, and a checksum, since neither format has one. A checkpoint
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
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, CheckpointError, RailbusError

PyTree: TypeAlias = Any
Leaves: TypeAlias = dict[str, Any]
PathLike: TypeAlias = str | os.PathLike[str]

_HEADER = "railbus"
_FILE_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    " float16 bfloat16 float32 float64 complex64".split()
)


def save_checkpoint(
    save_obj: PyTree,
    ckpt_file_name: PathLike,
    *,
    append_dict: Mapping[str, object] | None = None,
) -> Path:
    """Write a network to one safetensors file and return its path; an old file stays or goes whole.

    Args:
        save_obj: a `flax.nnx.Module`, an object with `params` and perhaps `state` (such as
            `cb_params.train_network`), or a tree of arrays.
        ckpt_file_name: gets MindSpore's ending `.ckpt` unless it has that or `.safetensors`.
        append_dict: JSON values such as `{"epoch_num": 3}`; `read_metadata` gives them back.

    Raises:
        ArgumentTypeError: `save_obj` or `append_dict` holds what a file cannot carry.
        CheckpointError: it cannot be written.
    """
    path = _path(ckpt_file_name)
    if path.suffix not in (".ckpt", ".safetensors"):
        path = path.with_name(path.name + ".ckpt")
    arrays, header = _pack(_network(save_obj), append_dict or {})
    for name, array in arrays.items():
        if array.dtype.name not in _FILE_DTYPES:
            raise ArgumentTypeError(f"{name!r} is {array.dtype}; safetensors cannot carry that")
    temporary = _beside(path)
    with _translated("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_file(temporary, arrays, header)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def load_checkpoint(
    ckpt_file_name: PathLike, net: nnx.Module | None = None
) -> dict[str, np.ndarray]:
    """The network's arrays by dotted name, from a safetensors file or an Orbax folder.

    PRNG keys come as their uint32 data. With `net`, its values are set too, all or none.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint, or does not fit `net`.
    """
    if net is not None and not isinstance(net, nnx.Module):
        raise ArgumentTypeError(f"net is {type(net).__name__}; expected a flax.nnx.Module")
    path = _path(ckpt_file_name)
    leaves = _without_tops(_read(path)) if path.is_dir() else _read(path)
    if net is not None:
        state = nnx.state(net)
        wanted = _leaves(state)
        _check_fit(path, wanted, leaves)
        nnx.update(net, _fill(state, {name: _like(wanted[name], leaves[name]) for name in wanted}))
    return {name: _host(name, leaf) for name, leaf in leaves.items()}


def write_tree(path: PathLike, tree: Mapping[str, PyTree], metadata: Mapping[str, object]) -> None:
    """Write an Orbax folder with the arrays of `tree` and JSON `metadata`.

    An older checkpoint at `path` is moved aside, then the new one moved in, then the old deleted.

    Args:
        path: the folder to be; nothing else may stand there.
        tree: for example `{"params": ..., "state": ..., "optimizer": ...}`.
        metadata: for example `{"epoch_num": 3, "step_num": 1200}`.

    Raises:
        ArgumentTypeError: `tree` or `metadata` holds what a checkpoint cannot carry.
        CheckpointError: it cannot be written.
    """
    arrays, header = _pack(_leaves(tree), metadata)
    if empty := [name for name, array in arrays.items() if not array.size]:
        raise CheckpointError(f"Orbax carries no empty arrays: {_listed(empty)}")
    nested = {top: {} for top in tree} | _nest(arrays)
    path = _path(path).absolute()
    if os.path.lexists(path) and not _is_orbax(path):
        raise CheckpointError(f"'{path}' exists and is no Orbax checkpoint; not replaced")
    staging = _beside(path)
    with _translated("write", path):
        try:
            staging.mkdir(parents=True)
            _write_folder(staging / "new", nested, header)
            _exchange(staging / "new", path, staging / "old")
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def read_tree(path: PathLike, like: PyTree | None = None) -> PyTree:
    """The arrays of a checkpoint in nested dicts, or in the structure of `like`; on the host.

    In nested dicts, lists are dicts too ("0", "1", ...) and PRNG keys are their uint32 data.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint, or does not fit `like`.
    """
    path = _path(path)
    leaves = _read(path)
    if like is None:
        return _nest({name: _host(name, leaf) for name, leaf in leaves.items()})
    _check_fit(path, _leaves(like), leaves)
    return _fill(like, leaves)


def read_metadata(path: PathLike) -> dict[str, Any]:
    """What `write_tree` got as `metadata`, or `save_checkpoint` as `append_dict`."""
    metadata: dict[str, Any] = _read_header(_path(path))["metadata"]
    return metadata


def _path(name: PathLike) -> Path:
    if not isinstance(name, (str, os.PathLike)):
        raise ArgumentTypeError(f"a checkpoint's name is {type(name).__name__}; expected a path")
    if not (path := Path(name)).name.strip():
        raise ArgumentError(f"{str(name)!r} names no checkpoint; expected a file name")
    return path


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _is_variable(node: object) -> bool:
    return isinstance(node, nnx.Variable)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _leaves(tree: PyTree) -> Leaves:
    leaves: Leaves = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]:
        if not path:
            raise ArgumentTypeError(
                f"got {type(leaf).__name__}; expected a flax.nnx.Module, an object with params, "
                "or a dict, list or tuple of arrays"
            )
        if (name := _name(path)) in leaves:
            raise CheckpointError(f"two arrays would be named {name!r}; rename one of them")
        leaves[name] = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
    return leaves


def _fill(tree: PyTree, leaves: Leaves) -> PyTree:
    """A tree built as `tree`, with these leaves."""

    def take(path: tuple[Any, ...], old: Any) -> Any:
        leaf = leaves[_name(path)]
        return old.replace(leaf) if isinstance(old, nnx.Variable) else leaf

    return jax.tree_util.tree_map_with_path(take, tree, is_leaf=_is_variable)


def _nest(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        *tops, last = name.split(".")
        node = nested
        for top in tops:
            node = node.setdefault(top, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or last in node:
            raise CheckpointError(f"another array's name begins or ends inside {name!r}")
        node[last] = array
    return nested


def _network(save_obj: PyTree) -> Leaves:
    if isinstance(save_obj, nnx.Module):
        return _leaves(nnx.state(save_obj))
    if isinstance(save_obj, (Mapping, list, tuple)) or not hasattr(save_obj, "params"):
        return _leaves(save_obj)
    parts = {"params": save_obj.params, "state": getattr(save_obj, "state", None)}
    return _without_tops(_leaves(parts))


def _without_tops(leaves: Leaves) -> Leaves:
    """The network's part of {"params": ..., "state": ..., ...}, named as in the network."""
    params = {name[7:]: leaf for name, leaf in leaves.items() if name.startswith("params.")}
    state = {name[6:]: leaf for name, leaf in leaves.items() if name.startswith("state.")}
    if both := params.keys() & state.keys():
        raise CheckpointError(f"params and state both hold {_listed([*both])}; rename one of them")
    return params | state if params else leaves


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _host(name: str, leaf: Any) -> np.ndarray:
    """The leaf, or a key's data, in native byte order, row after row."""
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        raise ArgumentTypeError(f"{name!r} is {type(leaf).__name__}; expected an array")
    array = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        raise CheckpointError(f"{name!r} is spread over several processes; gather it first")
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise ArgumentTypeError(f"{name!r} is an array of {array.dtype}; expected numbers or bools")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _like(old: Any, leaf: Any) -> Any:
    # A copy: on CPU device_put may share memory with the array that the caller gets.
    return jax.device_put(jnp.array(leaf), old.sharding) if isinstance(old, jax.Array) else leaf


def _check_fit(path: Path, wanted: Leaves, found: Leaves) -> None:
    def kind(leaf: Any) -> str:
        return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"

    faults = [f"{name!r} is missing" for name in sorted(wanted.keys() - found.keys())]
    faults += [f"{name!r} is unexpected" for name in sorted(found.keys() - wanted.keys())]
    faults += [
        f"{name!r} is {kind(found[name])}, expected {kind(wanted[name])}"
        for name in sorted(wanted.keys() & found.keys())
        if kind(found[name]) != kind(wanted[name])
    ]
    if faults:
        raise CheckpointError(f"'{path}' does not fit: {'; '.join(faults)}")


def _checksum(arrays: dict[str, np.ndarray]) -> int:
    crc = 0
    for name in sorted(arrays):
        crc = zlib.crc32(arrays[name].reshape(-1).view(np.uint8), zlib.crc32(name.encode(), crc))
    return crc


def _pack(leaves: Leaves, metadata: Mapping[str, object]) -> tuple[dict[str, np.ndarray], str]:
    if not leaves:
        raise CheckpointError("there is nothing to save; expected at least one array")
    arrays = {name: _host(name, leaf) for name, leaf in leaves.items()}
    keys = {name: jax.random.key_impl(leaf) for name, leaf in leaves.items() if _is_key(leaf)}
    header = {"metadata": dict(metadata), "prng_keys": keys, "crc32": _checksum(arrays)}
    try:
        return arrays, json.dumps(header)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"metadata {dict(metadata)} is not JSON: {error}") from error


def _read(path: Path) -> Leaves:
    header = _read_header(path)
    with _translated("read", path):
        arrays = _read_folder(path) if path.is_dir() else _read_file(path)
        if header.get("crc32") not in (None, _checksum(arrays)):
            raise CheckpointError(f"'{path}' is damaged: its arrays do not match their checksum")
        keys = header["prng_keys"].items()
        return arrays | {
            name: jax.random.wrap_key_data(jnp.array(arrays[name]), impl=impl)
            for name, impl in keys
        }


def _read_header(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointError(f"'{path}' does not exist; expected a safetensors file or Orbax folder")
    if path.is_dir() and not _is_orbax(path):
        raise CheckpointError(f"'{path}' is a folder, but no Orbax checkpoint")
    with _translated("read", path):
        if path.is_dir():
            with _orbax_checkpointer() as checkpointer:
                extra = checkpointer.metadata(path.absolute()).custom_metadata or {}
        else:
            with safe_open(path, framework="np") as file:
                extra = file.metadata() or {}
        header: dict[str, Any] = json.loads(extra.get(_HEADER, "{}"))
        return {"metadata": {}, "prng_keys": {}} | header
