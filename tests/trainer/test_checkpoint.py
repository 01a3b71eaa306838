"""Checkpoints: what goes in comes out bit for bit, and a name never stands for half of one."""

import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, CheckpointError
from railbus.trainer.checkpoint import (
    load_checkpoint,
    read_metadata,
    read_tree,
    save_checkpoint,
    write_tree,
)


class Net(nnx.Module):
    """Everything that a network's state may hold: nested layers, bfloat16, statistics, PRNG keys."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(params=seed, dropout=jax.random.key(seed, impl="rbg"))
        self.layers = nnx.List(
            [
                nnx.Linear(4, 4, rngs=rngs),
                nnx.Linear(4, 4, use_bias=False, param_dtype=jnp.bfloat16, rngs=rngs),
            ]
        )
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dropout(self.norm(self.layers[0](x)))


NAMES = {
    "layers.0.kernel",
    "layers.0.bias",
    "layers.1.kernel",
    "norm.scale",
    "norm.bias",
    "norm.mean",
    "norm.var",
    "dropout.rngs.key",
    "dropout.rngs.count",
}


def trained_net(seed: int = 0) -> Net:
    """A network whose statistics and dropout counter have moved."""
    net = Net(seed)
    net(jnp.arange(8.0).reshape(2, 4))
    return net


def handle(net: nnx.Module) -> SimpleNamespace:
    """What `cb_params.train_network` is: parameters, and the other state apart."""
    state = nnx.state(net)
    params, rest = nnx.split_state(state, nnx.Param, ...)
    return SimpleNamespace(params=params, state=rest)


def save_file_of(net: nnx.Module, path: Path) -> None:
    save_checkpoint(net, path)


def save_folder_of(net: nnx.Module, path: Path) -> None:
    parts = handle(net)
    optimizer = optax.adam(1e-3).init(parts.params)
    write_tree(path, {"params": parts.params, "state": parts.state, "optimizer": optimizer}, {})


both_kinds = pytest.mark.parametrize("save", [save_file_of, save_folder_of])
Save = Callable[[nnx.Module, Path], None]


def bits(array: Any) -> tuple[Any, Any, bytes]:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return array.dtype, array.shape, array.tobytes()


def all_bits(tree: Any) -> list[Any]:
    return [bits(leaf) for leaf in jax.tree.leaves(tree)]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@both_kinds
def test_a_network_comes_back_bit_for_bit(save: Save, tmp_path: Path) -> None:
    net, other = trained_net(seed=0), Net(seed=1)
    save(net, tmp_path / "a.ckpt")
    load_checkpoint(tmp_path / "a.ckpt", other)

    assert all_bits(nnx.state(other)) == all_bits(nnx.state(net))
    x = jnp.arange(8.0).reshape(2, 4)
    assert bits(other(x)) == bits(net(x))


@both_kinds
def test_the_values_come_by_dotted_names_with_keys_as_their_data(
    save: Save, tmp_path: Path
) -> None:
    net = trained_net()
    save(net, tmp_path / "a.ckpt")
    arrays = load_checkpoint(tmp_path / "a.ckpt")

    assert arrays.keys() == NAMES
    assert all(type(array) is np.ndarray for array in arrays.values())
    assert bits(arrays["layers.1.kernel"]) == bits(net.layers[1].kernel.get_value())
    key = jax.random.key_data(net.dropout.rngs.key.get_value())
    assert bits(arrays["dropout.rngs.key"]) == bits(key)


@pytest.mark.parametrize("state", [True, False])
def test_a_handle_is_saved_under_the_names_of_its_network(state: bool, tmp_path: Path) -> None:
    net = trained_net()
    parts = handle(net)
    if not state:
        parts.state = None
    path = save_checkpoint(parts, tmp_path / "handle")
    arrays, whole = load_checkpoint(path), load_checkpoint(save_checkpoint(net, tmp_path / "net"))

    statistics = {"norm.mean", "norm.var", "dropout.rngs.key", "dropout.rngs.count"}
    assert arrays.keys() == (NAMES if state else NAMES - statistics)
    assert all(bits(array) == bits(whole[name]) for name, array in arrays.items())


class Moments(NamedTuple):
    mu: Any
    nu: Any


def test_any_tree_of_arrays_is_saved_under_dotted_names(tmp_path: Path) -> None:
    tree = {"a": [np.zeros(1), (jnp.ones(2), {"b": np.float32(3)})], "m": Moments(np.ones(4), None)}
    arrays = load_checkpoint(save_checkpoint(tree, tmp_path / "tree"))

    assert {name: array.shape for name, array in arrays.items()} == {
        "a.0": (1,),
        "a.1.0": (2,),
        "a.1.1.b": (),
        "m.mu": (4,),
    }


def numbers() -> Iterator[np.ndarray]:
    kinds = "bool i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8".split()
    yield from (np.array([[0, 1, 7]]).astype(kind) for kind in kinds)
    yield np.array([1.5, np.nan, -0.0, np.inf], ml_dtypes.bfloat16)
    yield np.array([np.nan, -0.0, 5e-324])
    yield np.arange(6.0).reshape(2, 3).T
    yield np.arange(6.0)[::2]
    yield np.array(3.0)


def write_array(path: Path, array: np.ndarray) -> None:
    write_tree(path, {"a": array}, {})


def save_array(path: Path, array: np.ndarray) -> None:
    save_checkpoint({"a": array}, path)


@pytest.mark.parametrize("save", [save_array, write_array])
def test_every_kind_of_number_comes_back_bit_for_bit(
    save: Callable[[Path, np.ndarray], None], tmp_path: Path
) -> None:
    for array in numbers():
        save(tmp_path / "a.ckpt", array)

        assert bits(load_checkpoint(tmp_path / "a.ckpt")["a"]) == bits(array)


@pytest.mark.parametrize("save", [save_array, write_array])
def test_a_foreign_byte_order_keeps_the_values(
    save: Callable[[Path, np.ndarray], None], tmp_path: Path
) -> None:
    save(tmp_path / "a.ckpt", np.arange(3, dtype=">f4"))

    assert load_checkpoint(tmp_path / "a.ckpt")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "written"),
    [("a", "a.ckpt"), ("a.ckpt", "a.ckpt"), ("a.b", "a.b.ckpt"), ("a.safetensors",) * 2],
)
def test_a_name_gets_the_ending_ckpt_and_its_folders(
    name: str, written: str, tmp_path: Path
) -> None:
    path = save_checkpoint({"a": np.ones(1)}, os.fspath(tmp_path / "new" / "er" / name))

    assert path == tmp_path / "new" / "er" / written
    assert left_in(path.parent) == [written]


def test_a_file_gets_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    path = save_checkpoint({"a": np.ones(1)}, tmp_path / "a")

    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_append_dict_lies_beside_the_arrays(tmp_path: Path) -> None:
    extra = {"epoch_num": 3, "step_num": 1200, "best": 0.1, "note": "ü"}
    path = save_checkpoint({"a": np.ones(1)}, tmp_path / "a", append_dict=extra)

    assert read_metadata(path) == extra
    assert load_checkpoint(path).keys() == {"a"}


def test_other_tools_read_the_file_as_safetensors(tmp_path: Path) -> None:
    path = save_checkpoint({"a": np.ones(3)}, tmp_path / "a")

    with safe_open(path, framework="np") as file:
        assert file.get_tensor("a").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (3, ArgumentTypeError, "got int; expected a network"),
        (np.ones(3), ArgumentTypeError, "got ndarray; expected a network"),
        ({"a": np.ones(1), "b": 0.5}, ArgumentTypeError, "'b' is float; expected an array"),
        ({"a": "text"}, ArgumentTypeError, "'a' is str"),
        ({"a": np.array(["text"])}, ArgumentTypeError, "'a' is an array of <U4"),
        ({"a": np.array([object()])}, ArgumentTypeError, "'a' is an array of object"),
        ({"a": np.ones(1, complex)}, ArgumentTypeError, "'a' is complex128; safetensors"),
        ({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, CheckpointError, "two .* named 'a.b'"),
        ({}, CheckpointError, "nothing to save"),
        (SimpleNamespace(params={}, state=None), CheckpointError, "nothing to save"),
        (
            SimpleNamespace(params={"a": np.ones(1)}, state={"a": np.ones(1)}),
            CheckpointError,
            "'a'",
        ),
    ],
)
def test_what_a_file_cannot_carry_is_refused_before_anything_is_written(
    wrong: Any, error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        save_checkpoint(wrong, tmp_path / "deep" / "a")

    assert left_in(tmp_path) == []


@pytest.mark.parametrize("value", [np.ones(1), jnp.ones(()), object(), {1, 2}])
def test_metadata_that_is_no_json_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="no JSON"):
        save_checkpoint({"a": np.ones(1)}, tmp_path / "a", append_dict={"x": value})
    with pytest.raises(ArgumentTypeError, match="no JSON"):
        write_tree(tmp_path / "b", {"a": np.ones(1)}, {"x": value})

    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"a": np.ones(1), "none": np.ones((0, 3))}, "without elements: .'none'"),
        ({"a": np.ones(1), "a.b": np.ones(1)}, "folders of arrays: .'a'"),
        ({"b": {"c.d": np.ones(1)}, "b.c": np.ones(1)}, "folders of arrays: .'b.c'"),
    ],
)
def test_what_a_folder_cannot_carry_is_refused(
    tree: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=says):
        write_tree(tmp_path / "a", tree, {})

    assert left_in(tmp_path) == []


def test_names_and_networks_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    path = save_checkpoint({"a": np.ones(1)}, tmp_path / "a")

    with pytest.raises(ArgumentTypeError, match="name is int"):
        save_checkpoint({"a": np.ones(1)}, 3)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ArgumentError, match="'' names no checkpoint"):
        save_checkpoint({"a": np.ones(1)}, "")
    with pytest.raises(ArgumentTypeError, match=r"net is dict; expected a flax.nnx.Module"):
        load_checkpoint(path, {})  # type: ignore[arg-type]  # the mistake


def damage_file(path: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def cut(content: bytearray) -> None:
    del content[len(content) // 2 :]


def flip(content: bytearray) -> None:
    content[len(content) // 2] ^= 0x10


def largest_file(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


ARRAY = np.random.default_rng(0).normal(size=(64, 64))


@pytest.mark.parametrize("damage", [cut, flip, bytearray.clear])
@pytest.mark.parametrize("save", [save_array, write_array])
def test_a_damaged_checkpoint_is_refused(
    save: Callable[[Path, np.ndarray], None],
    damage: Callable[[bytearray], object],
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.ckpt"
    save(path, ARRAY)
    damage_file(largest_file(path) if path.is_dir() else path, damage)

    with pytest.raises(CheckpointError, match=r"cannot read .*a\.ckpt|a\.ckpt' is damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("lost", ["_METADATA", "manifest.ocdbt", "ocdbt.process_0"])
def test_a_folder_with_lost_parts_is_refused(lost: str, tmp_path: Path) -> None:
    write_array(tmp_path / "a", ARRAY)
    (tmp_path / "a" / lost).rename(tmp_path / "lost")

    with pytest.raises(CheckpointError, match="cannot read"):
        load_checkpoint(tmp_path / "a")


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("sprung",))


def test_what_is_no_checkpoint_is_refused_and_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.ckpt").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "folder").mkdir()

    for name, says in {
        "none.ckpt": "does not exist; expected a safetensors file or an Orbax folder",
        "folder": "is a folder, but no Orbax checkpoint",
        "pickle.ckpt": "cannot read checkpoint",
    }.items():
        for read in (load_checkpoint, read_tree, read_metadata):
            with pytest.raises(CheckpointError, match=says):
                read(tmp_path / name)
    assert left_in(tmp_path) == ["folder", "pickle.ckpt"]


@both_kinds
def test_what_does_not_fit_is_listed_once_and_changes_nothing(save: Save, tmp_path: Path) -> None:
    net, other = trained_net(), Net(seed=1)
    net.layers[0].kernel = nnx.Param(jnp.ones((4, 5)))
    net.layers[1].kernel = nnx.Param(jnp.ones((4, 4)))
    net.dropout.rngs.key = nnx.RngKey(jax.random.key(0), tag="dropout")
    net.extra, other.wanted = nnx.Param(jnp.ones(1)), nnx.Param(jnp.ones(1))  # type: ignore[attr-defined]  # new
    before = all_bits(nnx.state(other))
    save(net, tmp_path / "a.ckpt")

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "a.ckpt", other)

    assert str(caught.value).partition(": ")[2].split("; ") == [
        "'wanted' is missing",
        "'extra' is unexpected",
        "'dropout.rngs.key' is key<fry>[], expected key<rbg>[]",
        "'layers.0.kernel' is float32[4, 5], expected float32[4, 4]",
        "'layers.1.kernel' is float32[4, 4], expected bfloat16[4, 4]",
    ]
    assert all_bits(nnx.state(other)) == before


def test_a_network_shares_no_memory_with_the_values_that_were_loaded(tmp_path: Path) -> None:
    net = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    arrays = load_checkpoint(save_checkpoint(net, tmp_path / "a"), net)
    before = all_bits(nnx.state(net))
    for array in arrays.values():
        array[...] = 7

    assert all_bits(nnx.state(net)) == before


def test_weights_from_elsewhere_load_by_name(tmp_path: Path) -> None:
    net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    weights = {"kernel": np.full((2, 2), 7, np.float32), "bias": np.zeros(2, np.float32)}
    save_file(weights, tmp_path / "hub.safetensors", metadata={"format": "pt"})
    load_checkpoint(tmp_path / "hub.safetensors", net)

    assert net.kernel.get_value().tolist() == [[7, 7], [7, 7]]
    assert read_metadata(tmp_path / "hub.safetensors") == {}


def test_an_orbax_folder_from_elsewhere_loads_by_name(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"w": [jnp.ones(2), jnp.zeros((), jnp.bfloat16)]})
    arrays = load_checkpoint(tmp_path / "a")

    assert {name: bits(array) for name, array in arrays.items()} == {
        "w.0": bits(np.ones(2, np.float32)),
        "w.1": bits(np.zeros((), ml_dtypes.bfloat16)),
    }
    assert read_metadata(tmp_path / "a") == {}


def training_state(seed: int) -> dict[str, Any]:
    parts = handle(trained_net(seed))
    optimizer = optax.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.float32)(1e-3)
    return {
        "params": parts.params,
        "state": parts.state,
        "optimizer": optimizer.init(parts.params),
        "rng": jax.random.split(jax.random.key(seed)),
    }


def test_a_training_state_comes_back_in_its_own_structure(tmp_path: Path) -> None:
    tree, like = training_state(seed=0), training_state(seed=1)
    write_tree(tmp_path / "a.ckpt", tree, {"epoch_num": 3, "step_num": 9})
    found = read_tree(tmp_path / "a.ckpt", like)

    assert str(jax.tree.structure(found)) == str(jax.tree.structure(tree))
    assert all_bits(found) == all_bits(tree)
    assert found["rng"].dtype == tree["rng"].dtype
    assert read_metadata(tmp_path / "a.ckpt") == {"epoch_num": 3, "step_num": 9}


def test_a_structure_of_shapes_is_enough_to_read_into(tmp_path: Path) -> None:
    tree = training_state(seed=0)
    write_tree(tmp_path / "a.ckpt", tree, {})
    found = read_tree(tmp_path / "a.ckpt", jax.eval_shape(lambda: tree))

    assert all_bits(found) == all_bits(tree)


def test_without_a_structure_a_folder_reads_as_nested_dicts(tmp_path: Path) -> None:
    tree = {"params": {"layers": [np.ones(2), np.zeros(3)]}, "state": {}, "rng": jax.random.key(0)}
    write_tree(tmp_path / "a", tree, {})
    found = read_tree(tmp_path / "a")

    assert jax.tree.map(np.ndarray.tolist, found) == {
        "params": {"layers": {"0": [1, 1], "1": [0, 0, 0]}},
        "rng": [0, 0],
    }


def test_a_structure_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", {"a": np.ones(1), "b": np.ones(1)}, {})

    with pytest.raises(CheckpointError, match=r"'c' is missing; 'b' is unexpected; 'a' is float64"):
        read_tree(tmp_path / "a", {"a": np.ones(2), "c": np.ones(1)})


def write_version(path: Path, version: int) -> None:
    """A checkpoint that shows which version it is, in every element."""
    tree = {"a": np.full(100_000, version), "b": np.full(100_000, version)}
    if path.suffix == ".ckpt":
        save_checkpoint(tree, path, append_dict={"version": version})
    else:
        write_tree(path, tree, {"version": version})


def whole_version(path: Path) -> int:
    """The version that lies at `path`; fails if it is a mixture."""
    found = {read_metadata(path)["version"]}
    found |= set(np.concatenate([*load_checkpoint(path).values()]).tolist())
    assert len(found) == 1
    return int(found.pop())


file_and_folder = pytest.mark.parametrize("name", ["v.ckpt", "folder"])


@file_and_folder
def test_a_new_version_takes_the_place_of_the_old(name: str, tmp_path: Path) -> None:
    for version in (1, 2):
        write_version(tmp_path / name, version)

        assert whole_version(tmp_path / name) == version
        assert left_in(tmp_path) == [name]


@contextmanager
def largest_file_of(size: int) -> Iterator[None]:
    """As on a full disk, a file cannot grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@file_and_folder
def test_a_write_that_fails_leaves_the_old_version_and_nothing_else(
    name: str, tmp_path: Path
) -> None:
    write_version(tmp_path / name, 1)
    with pytest.raises(CheckpointError, match="cannot write"), largest_file_of(10_000):
        # Noise does not compress, so that the limit is met in both kinds.
        tree = {"a": ARRAY}
        if name == "folder":
            write_tree(tmp_path / name, tree, {})
        else:
            save_checkpoint(tree, tmp_path / name)

    assert whole_version(tmp_path / name) == 1
    assert left_in(tmp_path) == [name]


@file_and_folder
def test_a_place_that_cannot_be_written_to_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")

    with pytest.raises(CheckpointError, match="cannot write"):
        write_version(tmp_path / "file" / name, 1)
    assert left_in(tmp_path) == ["file"]


def test_only_a_checkpoint_is_replaced_by_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "work").write_text("kept")

    with pytest.raises(CheckpointError, match="no Orbax checkpoint; it is not replaced"):
        write_tree(tmp_path / "results", {"a": np.ones(1)}, {})
    (tmp_path / "results.ckpt").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        save_checkpoint({"a": np.ones(1)}, tmp_path / "results.ckpt")
    assert left_in(tmp_path) == ["results", "results.ckpt"]
    assert (tmp_path / "results" / "work").read_text() == "kept"


WRITER = """
import itertools, sys
from pathlib import Path
import numpy as np
from railbus.trainer.checkpoint import save_checkpoint, write_tree

path = Path(sys.argv[1])
for version in itertools.count(1):
    tree = {"a": np.full(1_000_000, version), "b": np.full(1_000_000, version)}
    if path.suffix == ".ckpt":
        save_checkpoint(tree, path, append_dict={"version": version})
    else:
        write_tree(path, tree, {"version": version})
    print(version, flush=True)
"""


def kill_while_writing(path: Path, versions: int) -> int:
    """Kill a process in the midst of a write, after `versions` whole ones; the last it reported."""
    folder = path.parent
    command = [sys.executable, "-c", WRITER, os.fspath(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(versions):
            assert writer.stdout.readline()
        while left_in(folder) in ([], [path.name]):
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        reported = writer.stdout.read().split()
    assert writer.returncode == -signal.SIGKILL
    return versions + len(reported)


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_a_killed_writer_leaves_a_whole_file(versions: int, tmp_path: Path) -> None:
    last = kill_while_writing(tmp_path / "v.ckpt", versions)

    assert whole_version(tmp_path / "v.ckpt") in (last, last + 1)
    write_version(tmp_path / "v.ckpt", 0)
    assert whole_version(tmp_path / "v.ckpt") == 0


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_a_killed_writer_leaves_a_whole_folder(versions: int, tmp_path: Path) -> None:
    last = kill_while_writing(tmp_path / "v", versions)

    assert whole_version(tmp_path / "v") in (last, last + 1)
    write_version(tmp_path / "v", 0)
    assert whole_version(tmp_path / "v") == 0


EACH_STEP = """
import itertools, os, shutil, signal, sys
from pathlib import Path
import numpy as np
import orbax.checkpoint
from railbus.trainer.checkpoint import write_tree

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")

def die_before(number):
    count = itertools.count(1)
    def watch(event, arguments):
        if event in CHANGES and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)

def write(path, version):
    write_tree(path, {"a": np.full(9, version), "b": np.full(9, version)}, {"version": version})

root, number, ended = Path(sys.argv[1]), 0, False
while not ended:
    number += 1
    path = root / str(number) / "v"
    child = os.fork()
    if child == 0:
        write(path, 1)
        die_before(number)
        write(path, 2)
        os._exit(0)
    ended = os.waitpid(child, 0)[1] == 0
print(number)
"""


def test_a_writer_killed_before_any_change_of_the_disk_leaves_a_whole_folder(
    tmp_path: Path,
) -> None:
    """Its two renames left a moment without one: a replaced checkpoint could be lost."""
    command = [sys.executable, "-c", EACH_STEP, os.fspath(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    folders = [tmp_path / str(number) / "v" for number in range(1, int(done.stdout) + 1)]

    found = [whole_version(folder) for folder in folders]
    assert found == sorted(found)
    assert set(found) == {1, 2}
    assert not all(folder.exists() for folder in folders)
    for folder in folders:
        write_version(folder, 3)
        assert whole_version(folder) == 3


@file_and_folder
def test_threads_may_write_and_read_at_once(name: str, tmp_path: Path) -> None:
    def work(version: int) -> int:
        path = tmp_path / str(version) / name
        write_version(path, version)
        return whole_version(path)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(16))) == list(range(16))


def test_a_file_that_is_being_replaced_reads_as_one_version(tmp_path: Path) -> None:
    path = save_checkpoint({"a": np.zeros(9)}, tmp_path / "v")

    def replace() -> None:
        for version in range(300):
            save_checkpoint({"a": np.full(9, version)}, path)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(replace)
        while not writer.done():
            assert len(set(load_checkpoint(path)["a"].tolist())) == 1
    writer.result()


@file_and_folder
def test_a_relative_name_is_one_of_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_version(Path(name), 1)

    assert whole_version(Path(name)) == whole_version(tmp_path / name) == 1


async def test_checkpoints_work_inside_an_event_loop(tmp_path: Path) -> None:
    for name in ("v.ckpt", "folder"):
        write_version(tmp_path / name, 1)

        assert whole_version(tmp_path / name) == 1


def test_nothing_stays_open_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_version(tmp_path / "folder", 0)
    before, files = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.WARNING):
        for name in ("v.ckpt", "folder"):
            write_version(tmp_path / name, 1)
            whole_version(tmp_path / name)
    for thread in set(threading.enumerate()) - before:
        # The workers of Orbax's event loop were told to end, and are not waited for.
        thread.join(timeout=10)

    assert set(threading.enumerate()) <= before
    assert set(os.listdir("/proc/self/fd")) == files
    assert caplog.records == []


def test_a_run_that_writes_no_folder_does_not_import_orbax(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from railbus.trainer.checkpoint import load_checkpoint, save_checkpoint\n"
        "load_checkpoint(save_checkpoint({'a': np.ones(1)}, sys.argv[1]))\n"
        "print('orbax.checkpoint' in sys.modules)"
    )
    command = [sys.executable, "-c", code, os.fspath(tmp_path / "a")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)

    assert done.stdout.split() == ["False"]
