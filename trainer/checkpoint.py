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
from pathlib import Path
from stat import S_IMODE
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, CheckpointError
from railbus.subscribers.checkpoint_place import replace, standing, sync

from .leaves import (
    Arrays,
    Leaves,
    PyTree,
    check_fit,
    fill,
    host,
    is_key,
    leaves_of,
    nest,
    network_leaves,
    network_part,
    place,
)

PathLike: TypeAlias = str | os.PathLike[str]

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
    arrays, header = _pack(network_leaves(save_obj), append_dict or {})
    for name, array in arrays.items():
        if array.dtype.name not in _FILE_DTYPES:
            raise ArgumentTypeError(f"{name!r} is {array.dtype}; safetensors cannot carry that")
    temporary = _beside(path)
    with _translated("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_file(temporary, arrays, header)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def load_checkpoint(ckpt_file_name: PathLike, net: nnx.Module | None = None) -> Arrays:
    """The network's arrays by dotted name, from a safetensors file or an Orbax folder.

    PRNG keys come as their uint32 data. With `net`, its values are set too, all or none.
    """
    if not isinstance(net, nnx.Module | None):
        raise ArgumentTypeError(f"net is {type(net).__name__}; expected a flax.nnx.Module")
    path = standing(_path(ckpt_file_name))
    leaves, _ = _read(path)
    if path.is_dir():
        leaves = network_part(leaves)
    if net is not None:
        state = nnx.state(net)
        wanted = leaves_of(state)
        check_fit(path, wanted, leaves)
        nnx.update(net, fill(state, {name: place(leaves[name], wanted[name]) for name in wanted}))
    return {name: host(name, leaf) for name, leaf in leaves.items()}


def write_tree(path: PathLike, tree: Mapping[str, PyTree], metadata: Mapping[str, object]) -> None:
    """Write an Orbax folder with the arrays of `tree` and JSON `metadata`.

    An older checkpoint at `path` is replaced; a reader finds a whole one at any time.

    Args:
        path: the folder to be; nothing that is no checkpoint may stand there.
        tree: for example `{"params": ..., "state": ..., "optimizer": ...}`.
        metadata: for example `{"epoch_num": 3, "step_num": 1200}`.
    """
    arrays, header = _pack(leaves_of(tree), metadata)
    nested = nest(arrays)
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
            replace(staging / "new", path, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def read_tree(path: PathLike, like: PyTree | None = None) -> PyTree:
    """The arrays of a checkpoint, on the host: in nested dicts, or in the structure of `like`.

    In nested dicts, lists are dicts too ("0", "1", ...), PRNG keys are their uint32 data, and what
    held no array is left out. `...` in `like` stands for any array.
    """
    path = standing(_path(path))
    leaves, _ = _read(path)
    if like is None:
        return nest({name: host(name, leaf) for name, leaf in leaves.items()})
    check_fit(path, leaves_of(like), leaves)
    return fill(like, leaves)


def read_metadata(path: PathLike) -> dict[str, Any]:
    """What `write_tree` got as `metadata`, or `save_checkpoint` as `append_dict`."""
    return _read(standing(_path(path)), only_header=True)[1]


def _path(name: PathLike) -> Path:
    if not isinstance(name, str | os.PathLike):
        raise ArgumentTypeError(f"a checkpoint's name is {type(name).__name__}; expected a path")
    if not (path := Path(name)).name:
        raise ArgumentError(f"{str(name)!r} names no checkpoint; expected a path")
    return path


def _checksum(arrays: Arrays) -> int:
    crc = 0
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(name.encode(), crc))
    return crc


def _pack(leaves: Leaves, metadata: Mapping[str, object]) -> tuple[Arrays, str]:
    if not leaves:
        raise CheckpointError("there is nothing to save; expected at least one array")
    arrays = {name: host(name, leaf) for name, leaf in leaves.items()}
    keys = {name: jax.random.key_impl(leaf) for name, leaf in leaves.items() if is_key(leaf)}
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
    arrays = {name: host(name, leaf) for name, leaf in leaves_of(tree).items()}
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


def _write_file(path: Path, arrays: Arrays, header: str) -> None:
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    save_file(arrays, path, metadata={_HEADER: header})
    # safetensors makes files that only their owner reads, whatever the umask.
    path.chmod(S_IMODE(mode))
    sync(path)


def _write_folder(path: Path, nested: dict[str, Any], header: str) -> None:
    ocp = _orbax()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        saved = ocp.args.PyTreeSave(nested)
        checkpointer.save(path, saved, custom_metadata={_HEADER: header})
    # Orbax leaves it to the system when its files reach the disk.
    for part in (*path.rglob("*"), path):
        sync(part)
