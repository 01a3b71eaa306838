"""Handles: the exact state of a run at one event, for callbacks (`cb_params.train_network`)."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from railbus.schemas.codec import Reference, pack
from railbus.schemas.errors import ArgumentError
from railbus.schemas.params import Live
from railbus.schemas.tensor import Tensor

from .checkpoint import save_checkpoint, write_tree
from .program import TrainState

INLINE_BYTES = 64 * 2**10  # larger arrays are in a snapshot by reference


class NetworkHandle:
    """The network as it is at one event; its arrays never change, so it stays that of this event.

    Attributes:
        params: nested dict of the trained arrays.
        state: nested dict of what else the network holds (batch statistics, RNGs); may be empty.
    """

    def __init__(self, source: Any, state: TrainState) -> None:
        self.source = source
        self.params, self.state = state.network
        self._optimizer = state.optimizer

    def save(
        self, path: str | Path, format: str = "ckpt", notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint that `load_checkpoint` reads, whole or not at all.

        Args:
            format: `"ckpt"`, an Orbax folder with network and optimizer, or `"safetensors"`, one
                file with the network.
            notes: JSON values that go with it.

        Raises:
            CheckpointError: it cannot be written.
        """
        if format == "safetensors":
            save_checkpoint(self, path, append_dict=notes)
            return
        leaves = enumerate(jax.tree.leaves(self._optimizer))
        optimizer = {str(place): leaf for place, leaf in leaves}
        tree = {"params": self.params, "state": self.state, "optimizer": optimizer}
        write_tree(Path(path), tree, notes or {})

    def __repr__(self) -> str:
        return f"<{type(self.source).__name__} at one event, {_size(self.params)}>"


class OptimizerHandle:
    """The optimizer as it is at one event; `state` is its optax state."""

    def __init__(self, state: TrainState) -> None:
        self.state = state.optimizer

    def __repr__(self) -> str:
        return f"<{type(self.state).__name__} at one event>"


class ArrayHandle:
    """An array that stays on the device until somebody asks for its values."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The values, copied from the device."""
        return np.asarray(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._array, dtype)

    def __jax_array__(self) -> Any:
        return jnp.asarray(self._array)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<array {self.dtype}{list(self.shape)}>"


class Handles:
    """What `cb_params` shows of a run's state; the stubs in its snapshots are the same throughout."""

    def __init__(self, network: Any, state: TrainState) -> None:
        self._network = network
        self._network_stub = _stub("network", type(network).__name__, _size(state.network.params))
        self._optimizer_stub = _stub("optimizer", type(state.optimizer).__name__, "")

    def at(self, state: TrainState) -> dict[str, Live]:
        """The handles of one event."""
        return {
            "train_network": Live(NetworkHandle(self._network, state), self._network_stub),
            "optimizer": Live(OptimizerHandle(state), self._optimizer_stub),
        }


def live(kind: str, value: Any) -> Live:
    """A live thing for `cb_params`: itself for callbacks here, a reference in a snapshot."""
    return Live(value, _stub(kind, getattr(value, "__name__", type(value).__name__), ""))


def live_batch(batch: tuple[Any, ...]) -> Live:
    """A batch for `cb_params`, which snapshots only describe."""
    return Live(batch, _batch_stub(tuple((one.dtype, one.shape) for one in batch)))


def live_outputs(outputs: Any) -> Live:
    """`shown` outputs for `cb_params`; arrays by handle are references in a snapshot."""
    packed = outputs if type(outputs) is Tensor else _packable(outputs)
    return Live(outputs, pack(packed, "net_outputs"))


@lru_cache(maxsize=256)
def _batch_stub(leaves: tuple[tuple[Any, tuple[int, ...]], ...]) -> bytes:
    summary = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in leaves)
    return _stub("batch", "tuple", summary)


@lru_cache(maxsize=256)
def _stub(kind: str, name: str, summary: str) -> bytes:
    return pack(Reference(kind=kind, type=name, summary=summary, id=""))


def shown(outputs: Any, inline: int = INLINE_BYTES) -> Any:
    """Outputs of a step as callbacks see them: arrays of up to `inline` bytes as `Tensor`s, which
    waits for the device, larger ones by handle.
    """
    if isinstance(outputs, (tuple, list)):
        return tuple(shown(one, inline) for one in outputs)
    if isinstance(outputs, Mapping):
        return {str(name): shown(one, inline) for name, one in outputs.items()}
    if outputs is None or isinstance(outputs, (bool, int, float, str)):
        return outputs
    if outputs.nbytes > inline:
        return ArrayHandle(outputs)
    return np.asarray(outputs).view(Tensor)  # read-only already: it is the device's copy


def _packable(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_packable(one) for one in value]
    if isinstance(value, dict):
        return {name: _packable(one) for name, one in value.items()}
    if isinstance(value, ArrayHandle):
        return Reference(
            kind="array", type="ndarray", summary=f"{value.dtype}{list(value.shape)}", id=""
        )
    return value


def replaced_params(old: Any, new: Any) -> Any:
    """`new` parameters in the place of `old`, on the device.

    Raises:
        ArgumentError: they differ in structure, shape or dtype; names the first that does.
    """
    new = getattr(new, "params", new)
    if not same_structure(old, new):
        raise ArgumentError(
            "train_network takes parameters of the same structure as cb_params.train_network.params"
        )
    new = jax.tree.map(jnp.asarray, new)
    for (path, was), now in zip(jax.tree.leaves_with_path(old), jax.tree.leaves(new), strict=True):
        if (now.shape, now.dtype) != (was.shape, was.dtype):
            raise ArgumentError(
                f"parameter {jax.tree_util.keystr(path)} must be {was.dtype}{list(was.shape)}, got "
                f"{now.dtype}{list(now.shape)}"
            )
    return new


def same_structure(one: Any, other: Any) -> bool:
    """Whether two trees differ in their leaves only."""
    first: Any = jax.tree.structure(one)
    return bool(first == jax.tree.structure(other))


def _size(params: Any) -> str:
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params))} parameters"
