"""Checkpoints: one safetensors file, or an Orbax folder; written whole or not at all, no pickle."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors, save as save_tensors

from railbus.schemas.errors import ArgumentTypeError, CheckpointError

SUFFIXES = (".ckpt", ".safetensors")
METADATA = "railbus.json"  # beside Orbax's own files in a folder


def save_checkpoint(
    save_obj: Any,
    ckpt_file_name: str | os.PathLike[str],
    *,
    append_dict: Mapping[str, Any] | None = None,
) -> Path:
    """Write a network's arrays to one safetensors file (MindSpore's name).

    The file appears whole or not at all: a temporary file beside it is written, flushed to disk
    and renamed. Missing folders are made; `.ckpt` is appended unless the name ends in `.ckpt` or
    `.safetensors`.

    Args:
        save_obj: `cb_params.train_network`, a flax.nnx module, or nested dicts, lists and tuples of
            arrays.
        append_dict: JSON values that go with it, for example the epoch.

    Returns:
        The path written.

    Raises:
        ArgumentTypeError: `save_obj` holds no arrays, or something else than arrays.
        CheckpointError: `append_dict` is no JSON.
        OSError: the file cannot be written; an older one is untouched.
    """
    path = Path(ckpt_file_name)
    if path.suffix not in SUFFIXES:
        path = path.with_name(path.name + ".ckpt")
    named = _named(save_obj)
    try:
        notes = {"format": "railbus", "append": json.dumps(dict(append_dict or {}))}
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"append_dict must hold JSON values: {error}") from error
    _write_whole(path, save_tensors(named, metadata=notes))
    return path


def load_checkpoint(
    ckpt_file_name: str | os.PathLike[str], net: nnx.Module | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """Read a network's arrays by dotted name, from a file or a folder (MindSpore's name).

    Args:
        net: a flax.nnx module that takes the values, once all of them fit.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it does not fit `net`.
    """
    path = Path(ckpt_file_name)
    if path.is_dir():
        tree = read_tree(path)
        named = _flat(tree.get("params", {}), "") | _flat(tree.get("state", {}), "")
    else:
        named = _read_file(path)
    if net is not None:
        _fill(net, named, path)
    return named


def write_tree(path: Path, tree: Mapping[str, Any], metadata: Mapping[str, object]) -> None:
    """Write nested dicts of arrays as an Orbax folder, with JSON metadata; whole or not at all.

    Raises:
        CheckpointError: `metadata` is no JSON.
    """
    # Orbax takes two seconds to import, which only those who save pay.
    from orbax import checkpoint as ocp

    try:
        notes = json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"metadata must hold JSON values: {error}") from error
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    plain = jax.tree.map(_plain, {name: part for name, part in tree.items()})
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(scratch, _str_keys(plain))
        (scratch / METADATA).write_text(notes)
        _replace_folder(scratch, path)
    finally:
        _remove(scratch)


def read_tree(path: Path) -> dict[str, Any]:
    """The nested dicts of an Orbax folder, as numpy arrays.

    Raises:
        CheckpointError: it is no Orbax folder, or damaged.
    """
    from orbax import checkpoint as ocp

    if not (path / METADATA).is_file():
        raise CheckpointError(f"{path} is no checkpoint folder: it has no {METADATA}")
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            restored = checkpointer.restore(
                path.absolute(),
                args=ocp.args.PyTreeRestore(
                    restore_args=jax.tree.map(
                        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
                        checkpointer.metadata(path.absolute()).item_metadata.tree,
                    )
                ),
            )
    except (ValueError, OSError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from error
    return dict(restored)


def read_metadata(path: Path) -> dict[str, Any]:
    """The JSON metadata of an Orbax folder.

    Raises:
        CheckpointError: it has none.
    """
    try:
        notes = json.loads((path / METADATA).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no checkpoint folder: {error}") from error
    return dict(notes)


def _named(save_obj: Any) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(save_obj, nnx.Module):
        tree: Any = nnx.to_pure_dict(nnx.state(save_obj))
        named = _flat(tree, "")
    elif hasattr(save_obj, "params"):
        named = _flat(save_obj.params, "") | _flat(getattr(save_obj, "state", None) or {}, "")
    else:
        named = _flat(save_obj, "")
    if not named:
        raise ArgumentTypeError(
            f"save_obj must be cb_params.train_network, a flax.nnx module or a tree of arrays, got "
            f"{type(save_obj).__name__}"
        )
    return named


def _flat(tree: Any, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a tree by dotted path."""
    flat: dict[str, np.ndarray[Any, Any]] = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = prefix + ".".join(_step(step) for step in path)
        if not hasattr(leaf, "dtype"):
            raise ArgumentTypeError(f"{name!r} must be an array, got {type(leaf).__name__}")
        flat[name] = np.ascontiguousarray(_plain(leaf)).reshape(np.shape(_plain(leaf)))
    return flat


def _step(step: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(step, name):
            return str(getattr(step, name))
    return str(step)


def _plain(leaf: Any) -> np.ndarray[Any, Any]:
    """An array as numpy; a PRNG key as the integers behind it."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _str_keys(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _str_keys(child) for key, child in tree.items()}
    return tree


def _read_file(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        return dict(load_tensors(path.read_bytes()))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is no checkpoint, or damaged: {error}") from error


def _fill(net: nnx.Module, named: Mapping[str, np.ndarray[Any, Any]], path: Path) -> None:
    state = nnx.state(net)
    own = nnx.to_pure_dict(state)
    wanted = {".".join(map(_step, at)): leaf for at, leaf in jax.tree.leaves_with_path(own)}
    wrong = [f"missing {name}" for name in wanted if name not in named]
    wrong += [f"unexpected {name}" for name in named if name not in wanted]
    for name in wanted.keys() & named.keys():
        expected, found = _plain(wanted[name]), named[name]
        if (expected.shape, expected.dtype) != (found.shape, found.dtype):
            wrong.append(
                f"{name} is {found.dtype}{list(found.shape)}, expected "
                f"{expected.dtype}{list(expected.shape)}"
            )
    if wrong:
        raise CheckpointError(f"{path} does not fit the network: {'; '.join(sorted(wrong))}")
    filled = jax.tree.map_with_path(
        lambda at, leaf: _like(leaf, named[".".join(map(_step, at))]), own
    )
    nnx.replace_by_pure_dict(state, filled)
    nnx.update(net, state)


def _like(leaf: Any, found: np.ndarray[Any, Any]) -> jax.Array:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(found, impl=jax.random.key_impl(leaf))
    return jax.numpy.asarray(found)


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(scratch, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        _sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def _replace_folder(scratch: Path, path: Path) -> None:
    """Folders cannot be exchanged in one step; an older one is moved aside first."""
    _sync_folder(scratch)
    old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
    if path.exists():
        os.replace(path, old)
    os.replace(scratch, path)
    _sync_folder(path.parent)
    _remove(old)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
