"""Blocks: steps given to the device together, as one program (fused) or as calls (dispatched)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from railbus.schemas.errors import ArgumentError
from railbus.schemas.hooks import Mode

from .arrays import Batch, Layout, Picked, layout_of
from .outputs import INLINE_BYTES, Stack
from .program import Carry, Program
from .tree import same_structure

MOST_STEPS = 1024  # of a block
ROOM = 16 * 2**20  # bytes of batches and outputs in a fused block
LARGE_BATCH = 4 * 2**20  # bytes; taking such a row out of a block on CPU costs more than a call
LARGE_OUTPUTS = 16 * 2**10  # bytes; a block clears room for 1024 of them, however few it fills

Fuse = Literal["auto"] | bool


class Form(NamedTuple):
    """In which form a run's blocks are given to the device, and why.

    `alone`: one step a block and nothing ahead, since a step that is done again would be seen.
    """

    fused: bool
    reason: str
    alone: bool = False


def choose(
    fuse: Fuse,
    program: Program,
    carry: Carry,
    batches: Mapping[Mode, Batch],
    arrays: Mapping[Mode, Any],
) -> Form:
    """The form of a run's blocks: a rule on the device and the steps' own programs (DESIGN 5).

    The two forms may differ in the last bits, so nothing here depends on timing.

    rule                                             | form
    -------------------------------------------------+-----------
    the step acts on the host (`io_callback`)        | dispatched, one step a block, none ahead
    `fuse=True` or `False`                           | that one
    the step cannot be looped (it changes its types) | dispatched
    batches hold keys, or are on an accelerator      | dispatched
    CPU, the step has a convolution (jax#12868)      | dispatched
    CPU, a batch of over 4 MiB                       | dispatched
    CPU, outputs of over 16 KiB a step               | dispatched
    otherwise                                        | fused

    Args:
        batches: the first one of each dataset.
        arrays: a dataset's, where they are on the device.

    Raises:
        ArgumentError: `fuse=True` for a step that cannot be looped.
    """
    steps = {
        mode: _traced(program, mode, carry, batch, arrays.get(mode))
        for mode, batch in batches.items()
    }
    if any(traced.jaxpr.effects for traced in steps.values()):
        return Form(False, "the step acts on the host, so none may be done twice", alone=True)
    if fuse is False:
        return Form(False, "asked for")
    slow = None
    for mode, batch in batches.items():
        traced = steps[mode]
        obstacle = _obstacle(batch) or _unlike(program, mode, carry, traced)
        if obstacle and fuse is True:
            raise ArgumentError(f"fuse=True cannot work: {obstacle}")
        if obstacle:
            return Form(False, obstacle)
        slow = slow or _slow(traced, batch)
    if fuse is True:
        return Form(True, "asked for")
    return Form(False, slow) if slow else Form(True, "one program per block")


def _slow(traced: Any, batch: Batch) -> str | None:
    """Why the step is slower in a loop, if it is."""
    if jax.default_backend() != "cpu":
        return None
    if "conv_general_dilated" in _primitives(traced.jaxpr.jaxpr):
        return "convolutions in a loop are slow on CPU"
    if _size(fed(batch)) > LARGE_BATCH:
        return "large batches in a loop are slow on CPU"
    outputs = jax.tree.leaves(traced.out_info[1])
    if _size(tuple((one.shape, one.dtype) for one in outputs)) > LARGE_OUTPUTS:
        return "large outputs in a loop are slow on CPU"
    return None


class Outputs:
    """What a block's steps give; it is on its way until `wait` returns."""

    def __init__(self, tree: Any, count: int, fused: bool, buffers: Any = None) -> None:
        self.count, self.buffers = count, buffers
        self._tree, self._fused = tree, fused
        for leaf in jax.tree.leaves(tree):
            if leaf.nbytes <= INLINE_BYTES * (leaf.shape[0] if fused else 1):
                leaf.copy_to_host_async()  # all on their way together, as soon as they are there

    @property
    def ready(self) -> bool:
        """Whether `wait` would not wait."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self._tree))

    def wait(self) -> None:
        """Until the device is done.

        Raises:
            Exception: what a step raised.
        """
        for leaf in jax.tree.leaves(self._tree):
            leaf.block_until_ready()

    def stacks(self) -> Any:
        """The tree that a step gives, a `Stack` in the place of each array."""
        if self._fused:
            return jax.tree.map(lambda leaf: Stack.rows(leaf, self.count), self._tree)
        return jax.tree.map(lambda *leaves: Stack.of(leaves), *self._tree)


class Runner:
    """Runs blocks of steps, all of one form.

    Args:
        arrays: the data set where it is on the device; batches are then its rows.
        donate: training states may be overwritten (`exact=False`).

    Attributes:
        steps_again: how many were done a second time, for a rollback or for who looked inside.
    """

    def __init__(
        self, program: Program, fused: bool, arrays: Mapping[Mode, Any], donate: bool = False
    ) -> None:
        self.program, self.fused, self.donate = program, fused, donate
        self._arrays = arrays
        self._rooms: dict[tuple[Mode, Layout], int] = {}
        self._free = program.buffers
        self._used: set[Any] = set()
        self.steps_again = 0

    def longest(self, mode: Mode, carry: Carry, batch: Batch) -> int:
        """The most steps of a block: what has room, and one length for all blocks of a layout."""
        key = mode, layout_of(batch)
        if key not in self._rooms:
            outputs = _traced(self.program, mode, carry, batch, self._arrays.get(mode)).out_info[1]
            leaves = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(outputs)]
            row = _size(fed(batch)) + _size(tuple(leaves))
            self._rooms[key] = max(1, min(MOST_STEPS, ROOM // max(row, 1)))
        return self._rooms[key]

    def run(self, mode: Mode, carry: Carry, batches: Sequence[Batch]) -> tuple[Carry, Outputs]:
        """Give the device a block, and return at once.

        With `donate`, `carry` cannot be used afterwards.
        """
        rows = self.longest(mode, carry, batches[0]) if self.fused else 0
        if mode == "train":
            state, outputs = self._run(mode, None, carry.state, batches, rows)
            return Carry(state), outputs
        evaluation = carry.evaluation
        if evaluation is None:
            evaluation = self.program.init_evaluation
        network = carry.state.network
        evaluation, outputs = self._run(mode, network, evaluation, batches, rows)
        return Carry(carry.state, evaluation), outputs

    def release(self, mode: Mode, batches: Sequence[Batch], outputs: Outputs) -> None:
        """The device is done with that block; its batches' memory serves another one."""
        if outputs.buffers is not None:
            rows = len(outputs.buffers[0])
            free = self._free.setdefault((mode, fed(batches[0]), rows), [])
            free.append(outputs.buffers)
            outputs.buffers = None

    def forget(self) -> None:
        """The run is over: the next one finds the memory of its blocks, and no older one's."""
        for key in self._free.keys() - self._used:
            del self._free[key]

    def _run(
        self, mode: Mode, constant: Any, changing: Any, batches: Sequence[Batch], rows: int
    ) -> tuple[Any, Outputs]:
        arrays, count = self._arrays.get(mode), len(batches)
        if self.fused:
            block = self.program.block(mode, self.donate and mode == "train")
            buffers = self._filled(mode, batches, rows)
            changing, tree = block(arrays, constant, changing, buffers, np.int32(count))
            return changing, Outputs(tree, count, True, buffers)
        step, trees = self.program.step(mode, self.donate and mode == "train"), []
        for batch in batches:
            changing, tree = step(arrays, constant, changing, _leaves(batch))
            trees.append(tree)
        return changing, Outputs(trees, count, False)

    def _filled(self, mode: Mode, batches: Sequence[Batch], rows: int) -> Any:
        """The batches in the first of so many rows of arrays that XLA can use in place."""
        layout = fed(batches[0])
        key = mode, layout, rows
        self._used.add(key)
        free = self._free.setdefault(key, [])
        try:
            buffers = free.pop()
        except IndexError:
            buffers = tuple(_aligned((rows, *shape), dtype) for shape, dtype in layout)
        for buffer, leaves in zip(buffers, zip(*map(_leaves, batches), strict=True), strict=True):
            np.stack(leaves, out=buffer[: len(batches)], casting="same_kind")
        return buffers


def _leaves(batch: Batch) -> tuple[Any, ...]:
    """What of a batch goes to the device."""
    return (batch.rows,) if isinstance(batch, Picked) else tuple(batch)


def fed(batch: Batch) -> Layout:
    """Shapes and dtypes of what of a batch goes to the device."""
    return tuple(
        (tuple(leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in _leaves(batch)
    )


def _size(layout: Layout) -> int:
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in layout)


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array at an address that XLA takes without a copy (64 bytes)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    aligned: np.ndarray[Any, Any] = raw[start : start + size].view(dtype).reshape(shape)
    return aligned


def _traced(program: Program, mode: Mode, carry: Carry, batch: Batch, arrays: Any) -> Any:
    if mode == "train":
        return program.step(mode).trace(arrays, None, carry.state, _leaves(batch))
    evaluation = program.init_evaluation if carry.evaluation is None else carry.evaluation
    return program.step(mode).trace(arrays, carry.state.network, evaluation, _leaves(batch))


def _obstacle(batch: Batch) -> str | None:
    for leaf in _leaves(batch):
        if not isinstance(leaf.dtype, np.dtype):
            return f"the batches hold {leaf.dtype}"
        if isinstance(leaf, jax.Array) and leaf.devices() - set(jax.devices("cpu")):
            return "the batches are on an accelerator already"
    return None


def _unlike(program: Program, mode: Mode, carry: Carry, traced: Any) -> str | None:
    """Why a step's result cannot be the next step's input, if so."""
    after, outputs = traced.out_info
    before = carry.state if mode == "train" else carry.evaluation or program.init_evaluation
    if not same_structure(before, after):
        return "a step gives back a state of another structure"
    for (path, old), new in zip(
        jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            return (
                f"a step changes {jax.tree_util.keystr(path)} from {old.dtype}{list(old.shape)} to "
                f"{new.dtype}{list(new.shape)}"
            )
    if any(not isinstance(leaf.dtype, np.dtype) for leaf in jax.tree.leaves(outputs)):
        return "a step gives keys"
    return None


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Names of the operations in `jaxpr`, those inside of others too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda it: hasattr(it, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _primitives(inner)
