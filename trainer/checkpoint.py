"""Checkpoints on disk: one safetensors file, or an Orbax folder.

Both hold arrays under dotted names ("layers.0.kernel") and a JSON header: the caller's metadata,
which arrays are data of PRNG keys, and a checksum, since neither format has one. A checkpoint
appears under its name only when it is complete and on the disk. What cannot be written, read or
fitted raises `CheckpointError`; what a checkpoint cannot carry, `ArgumentTypeError`.
"""

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from stat import S_IMODE
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import unflatten_dict
from safetensors import safe_open
from safetensors.numpy import save_file

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, CheckpointError

PathLike: TypeAlias = str | os.PathLike[str]
PyTree: TypeAlias = Any
Leaves: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, np.ndarray]

_HEADER = "railbus"
_ORBAX_MARK = "_CHECKPOINT_METADATA"
_FILE_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    " float16 bfloat16 float32 float64 complex64".split()
)


def save_checkpoint(
    save_obj: PyTree, ckpt_file_name: PathLike, *, append_dict: Mapping[str, object] | None = None
) -> Path:
    """Write a network to one safetensors file and return its path; replaces a file at once.

    Args:
        save_obj: a `flax.nnx.Module`, an object with `params` and perhaps `state` (such as
            `cb_params.train_network`), or a tree of arrays.
        ckpt_file_name: gets MindSpore's ending `.ckpt` unless it has that or `.safetensors`.
        append_dict: JSON values such as `{"epoch_num": 3}`; `read_metadata` gives them back.
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


def load_checkpoint(ckpt_file_name: PathLike, net: nnx.Module | None = None) -> Arrays:
    """The network's arrays by dotted name, from a safetensors file or an Orbax folder.

    PRNG keys come as their uint32 data. With `net`, its values are set too, all or none.
    """
    if not isinstance(net, nnx.Module | None):
        raise ArgumentTypeError(f"net is {type(net).__name__}; expected a flax.nnx.Module")
    path = _path(ckpt_file_name)
    leaves, _ = _read(path)
    if path.is_dir():
        leaves = _network_part(leaves)
    if net is not None:
        state = nnx.state(net)
        wanted = _leaves(state)
        _check_fit(path, wanted, leaves)
        nnx.update(net, _fill(state, {name: _place(leaves[name], wanted[name]) for name in wanted}))
    return {name: _host(name, leaf) for name, leaf in leaves.items()}


def write_tree(path: PathLike, tree: Mapping[str, PyTree], metadata: Mapping[str, object]) -> None:
    """Write an Orbax folder with the arrays of `tree` and JSON `metadata`.

    An older checkpoint at `path` is moved aside, the new one moved in, the old one deleted.

    Args:
        path: the folder to be; nothing that is no checkpoint may stand there.
        tree: for example `{"params": ..., "state": ..., "optimizer": ...}`.
        metadata: for example `{"epoch_num": 3, "step_num": 1200}`.
    """
    arrays, header = _pack(_leaves(tree), metadata)
    nested = _nest(arrays)
    if empty := [name for name, array in arrays.items() if not array.size]:
        raise CheckpointError(f"Orbax cannot carry arrays without elements: {empty}")
    path = _path(path).absolute()
    if os.path.lexists(path) and not (path / _ORBAX_MARK).is_file():
        raise CheckpointError(f"'{path}' exists and is no Orbax checkpoint; it is not replaced")
    staging = _beside(path)
    with _translated("write", path):
        try:
            staging.mkdir(parents=True)
            _write_folder(staging / "new", nested, header)
            _exchange(staging / "new", path, staging / "old")
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def read_tree(path: PathLike, like: PyTree | None = None) -> PyTree:
    """The arrays of a checkpoint, on the host: in nested dicts, or in the structure of `like`.

    In nested dicts, lists are dicts too ("0", "1", ...), PRNG keys are their uint32 data, and what
    held no array is left out. `...` in `like` stands for any array.
    """
    path = _path(path)
    leaves, _ = _read(path)
    if like is None:
        return _nest({name: _host(name, leaf) for name, leaf in leaves.items()})
    _check_fit(path, _leaves(like), leaves)
    return _fill(like, leaves)


def read_metadata(path: PathLike) -> dict[str, Any]:
    """What `write_tree` got as `metadata`, or `save_checkpoint` as `append_dict`."""
    return _read(_path(path), only_header=True)[1]


def _path(name: PathLike) -> Path:
    if not isinstance(name, str | os.PathLike):
        raise ArgumentTypeError(f"a checkpoint's name is {type(name).__name__}; expected a path")
    if not (path := Path(name)).name:
        raise ArgumentError(f"{str(name)!r} names no checkpoint; expected a path")
    return path


def _flatten(tree: PyTree) -> tuple[list[tuple[str, Any]], jax.tree_util.PyTreeDef]:
    found, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    return [(name(path), leaf) for path, leaf in found], structure


def _leaves(tree: PyTree) -> Leaves:
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


def _fill(tree: PyTree, leaves: Leaves) -> PyTree:
    """A tree built as `tree`, with these leaves."""
    found, structure = _flatten(tree)
    return structure.unflatten(
        old.replace(leaves[name]) if isinstance(old, nnx.Variable) else leaves[name]
        for name, old in found
    )


def _nest(arrays: Arrays) -> dict[str, Any]:
    inner = {
        top for name in arrays for top in list(accumulate(name.split("."), "{}.{}".format))[:-1]
    }
    if both := inner & arrays.keys():
        raise CheckpointError(f"names of arrays and of folders of arrays: {sorted(both)}")
    return dict(unflatten_dict(arrays, sep="."))  # type: ignore[no-untyped-call]  # flax's own


def _network(save_obj: PyTree) -> Leaves:
    if isinstance(save_obj, nnx.Module):
        return _leaves(nnx.state(save_obj))
    if isinstance(save_obj, Mapping | list | tuple) or not hasattr(save_obj, "params"):
        return _leaves(save_obj)
    state = getattr(save_obj, "state", None)
    return _network_part(_leaves({"params": save_obj.params, "state": state}))


def _network_part(leaves: Leaves) -> Leaves:
    """Of {"params": ..., "state": ..., ...} the first two, named as in the network."""
    params = {name[7:]: leaf for name, leaf in leaves.items() if name.startswith("params.")}
    state = {name[6:]: leaf for name, leaf in leaves.items() if name.startswith("state.")}
    if both := params.keys() & state.keys():
        raise CheckpointError(f"in params and in state: {sorted(both)}; rename one of them")
    return params | state if params else leaves


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _host(name: str, leaf: Any) -> np.ndarray:
    """The leaf, or a key's data, in native byte order, row after row."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise ArgumentTypeError(f"{name!r} is {type(leaf).__name__}; expected an array")
    array: Any = leaf
    if _is_key(leaf):
        array = jax.random.key_data(array)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        raise CheckpointError(f"{name!r} is spread over several processes; gather it first")
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise ArgumentTypeError(f"{name!r} is an array of {array.dtype}; expected numbers or bools")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _place(leaf: Any, old: Any) -> Any:
    # A copy: on CPU device_put may share memory with the array that the caller gets.
    return jax.device_put(jnp.array(leaf), old.sharding) if isinstance(old, jax.Array) else leaf


def _check_fit(path: Path, wanted: Leaves, found: Leaves) -> None:
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


def _checksum(arrays: Arrays) -> int:
    crc = 0
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(name.encode(), crc))
    return crc


def _pack(leaves: Leaves, metadata: Mapping[str, object]) -> tuple[Arrays, str]:
    if not leaves:
        raise CheckpointError("there is nothing to save; expected at least one array")
    arrays = {name: _host(name, leaf) for name, leaf in leaves.items()}
    keys = {name: jax.random.key_impl(leaf) for name, leaf in leaves.items() if _is_key(leaf)}
    header = {"metadata": dict(metadata), "prng_keys": keys, "crc32": _checksum(arrays)}
    try:
        return arrays, json.dumps(header)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"metadata {dict(metadata)} is no JSON: {error}") from error


def _read(path: Path, *, only_header: bool = False) -> tuple[Leaves, dict[str, Any]]:
    """The arrays, those that are keys as keys, and the metadata."""
    if not path.exists():
        expected = "a safetensors file or an Orbax folder"
        raise CheckpointError(f"'{path}' does not exist; expected {expected}")
    if path.is_dir() and not (path / _ORBAX_MARK).is_file():
        raise CheckpointError(f"'{path}' is a folder, but no Orbax checkpoint")
    with _translated("read", path):
        read = _read_folder if path.is_dir() else _read_file
        arrays, extra = read(path.absolute(), only_header)
        header = {"metadata": {}, "prng_keys": {}} | json.loads(extra.get(_HEADER, "{}"))
    if not only_header:
        if header.get("crc32") not in (None, _checksum(arrays)):
            raise CheckpointError(f"'{path}' is damaged: its arrays do not match their checksum")
        for name, impl in header["prng_keys"].items():
            arrays[name] = jax.random.wrap_key_data(jnp.array(arrays[name]), impl=impl)
    return arrays, header["metadata"]


def _read_file(path: Path, only_header: bool) -> tuple[Leaves, dict[str, Any]]:
    with safe_open(path, framework="np") as file:
        return {} if only_header else file.get_tensors(), file.metadata() or {}


def _read_folder(path: Path, only_header: bool) -> tuple[Leaves, dict[str, Any]]:
    ocp, tree = _orbax(), {}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        stored = checkpointer.metadata(path)
        if not only_header:
            # Whatever devices wrote it, it comes to the host.
            kinds = jax.tree.map(lambda _: ocp.RestoreArgs(np.ndarray), stored.item_metadata.tree)
            tree = checkpointer.restore(path, ocp.args.PyTreeRestore(restore_args=kinds))
    arrays = {name: _host(name, leaf) for name, leaf in _leaves(tree).items()}
    return arrays, stored.custom_metadata or {}


def _orbax() -> Any:
    # Imported late: it can take a second, which a run that saves no checkpoint need not wait.
    import orbax.checkpoint

    return orbax.checkpoint


@contextmanager
def _translated(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Of TensorStore's messages the first line says what happened; the rest is its settings.
        reason = str(error).partition("\n")[0][:300]
        raise CheckpointError(f"cannot {verb} checkpoint '{path}': {reason}") from error


def _beside(path: Path) -> Path:
    """A name of its own in the same folder, so that a rename can put it in place."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_file(path: Path, arrays: Arrays, header: str) -> None:
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    save_file(arrays, path, metadata={_HEADER: header})
    # safetensors makes files that only their owner reads, whatever the umask.
    path.chmod(S_IMODE(mode))
    _sync(path)


def _write_folder(path: Path, nested: dict[str, Any], header: str) -> None:
    ocp = _orbax()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        saved = ocp.args.PyTreeSave(nested)
        checkpointer.save(path, saved, custom_metadata={_HEADER: header})
    # Orbax leaves it to the system when its files reach the disk.
    for part in (*path.rglob("*"), path):
        _sync(part)


def _exchange(new: Path, path: Path, old: Path) -> None:
    if path.exists():
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    _sync(path.parent)
