"""What an interrupted run is gone on with: all of it as it was at one committed event."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from flax import serialization

from railbus.schemas.errors import ArgumentError, CheckpointError
from railbus.schemas.events import StopRequest
from railbus.schemas.hooks import Mode
from railbus.schemas.lifecycle import Place
from railbus.subscribers.callback import Callback
from railbus.subscribers.checkpoint_place import standing

from .checkpoint import read_metadata, read_tree, write_tree
from .program import TrainState

logger = logging.getLogger(__name__)

KEY = "run"  # of a checkpoint's tree: the cut beside the arrays


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one committed event, its arrays aside: every ack up to there, none after.

    Attributes:
        seconds: on the run's own clock.
        data: which epoch each `ArrayDataset` was in.
        losses: of the epoch's steps so far; `history` and `metrics` are the result's.
        params: what callbacks had added to `cb_params`, and the last outputs, packed.
        stop: what a callback had ended the run with; None where it was merely interrupted.
        callbacks: what each one's `state_dict` gave, by the name it has in the run; None where
            the run had failed, so that some had seen the event that failed and others not.
    """

    run_id: str
    incarnation: int
    step: int
    epoch: int
    batches: int | None
    batch_num: int | None
    seconds: float
    stop: StopRequest | None
    data: dict[Mode, int]
    losses: list[float]
    history: list[dict[str, Any]]
    metrics: dict[str, Any]
    params: dict[str, bytes]
    callbacks: dict[str, dict[str, Any]] | None

    @property
    def place(self) -> Place:
        """Where the run goes on."""
        return Place(step=self.step, epoch=self.epoch, batches=self.batches, stop=self.stop)


class Point(NamedTuple):
    """A checkpoint from which a run goes on."""

    path: Path
    cut: Cut


def pack(cut: Cut) -> bytes:
    """A cut as bytes, at once: what callbacks' states hold may change with the next event.

    Raises:
        CheckpointError: a callback's state cannot be carried.
    """
    try:
        packed: bytes = serialization.msgpack_serialize(_copied(cut), in_place=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"a state_dict holds what no checkpoint carries: {error}") from error
    return packed


def write(path: Path, state: TrainState, cut: bytes, notes: Mapping[str, Any]) -> None:
    """Write an Orbax folder with a run's arrays and, to be resumed from, its packed cut.

    Raises:
        CheckpointError: it cannot be written.
    """
    write_tree(path, _tree(state) | {KEY: np.frombuffer(cut, np.uint8)}, notes)


def read_cut(path: Path) -> Cut:
    """The cut of a checkpoint, without reading its arrays.

    Raises:
        CheckpointError: it is none, damaged, or holds no run.
    """
    read_metadata(path)  # refuses what is no checkpoint
    folder = standing(path)
    packed = _read_packed(folder) if folder.is_dir() else None
    if packed is None:
        raise CheckpointError(
            f"'{path}' holds a network, but no run to go on with; ModelCheckpoint and "
            f"BackupAndRestore write both in their default format"
        )
    try:
        return msgspec.convert(serialization.msgpack_restore(packed), Cut, strict=False)
    except Exception as error:
        raise CheckpointError(f"'{path}' is damaged, its run cannot be read: {error}") from error


def read_state(path: Path, like: TrainState) -> TrainState:
    """A checkpoint's arrays as a state.

    Raises:
        CheckpointError: they are not those of such a network and optimizer.
    """
    wanted = _tree(like)
    found = read_tree(path, wanted | {KEY: ...})
    arrays = jax.tree.map(
        lambda new, old: jax.device_put(jnp.asarray(new), old.sharding),
        {name: found[name] for name in wanted},
        wanted,
    )
    leaves = [arrays["optimizer"][name] for name in wanted["optimizer"]]
    optimizer = jax.tree.unflatten(jax.tree.structure(like.optimizer), leaves)
    return TrainState(
        like.network._replace(params=arrays["params"], rest=arrays["state"]), optimizer
    )


def find(resume: Any, callbacks: Sequence[Callback]) -> Point | None:
    """What a run is to go on with, if anything: the checkpoint named, or the newest there is.

    Raises:
        ArgumentError: `resume` is no path, or nothing is there.
        CheckpointError: no run can go on with it.
    """
    if resume is not None and (not isinstance(resume, str | Path) or not str(resume)):
        raise ArgumentError(f"resume must be a checkpoint's path, 'latest' or None, got {resume!r}")
    if resume not in (None, "latest"):
        if not standing(Path(resume)).exists():
            raise ArgumentError(f"resume={str(resume)!r} does not exist")
        return Point(Path(resume), read_cut(Path(resume)))
    offers = (path for one in callbacks for path in one.resume_points(resume == "latest"))
    paths = list(dict.fromkeys(map(Path, offers)))
    if not paths:
        if resume == "latest":
            logger.warning("no checkpoint to go on with; the run begins anew")
        return None
    alone = len(paths) == 1
    point = Point(paths[0], read_cut(paths[0])) if alone else _furthest_whole(paths)
    logger.info("the run goes on from %s", point.path)
    return point


def _furthest_whole(paths: Sequence[Path]) -> Point:
    """The one that has come furthest in the newest one's run, of those that can be read.

    Raises:
        CheckpointError: none can be.
    """
    points = []
    for path in paths:
        try:
            points.append(Point(path, read_cut(path)))
        except CheckpointError as error:
            logger.warning("'%s' is passed over: %s", path, error)
    points.sort(key=lambda point: standing(point.path).stat().st_mtime_ns)
    run_id = points[-1].cut.run_id if points else None
    for point in sorted(points, key=lambda point: _progress(point.cut, run_id), reverse=True):
        try:
            read_tree(point.path)
        except CheckpointError as error:
            logger.warning("'%s' is passed over: %s", point.path, error)
        else:
            return point
    raise CheckpointError(f"no run can go on from any of {[str(path) for path in paths]}")


def _progress(cut: Cut, run_id: str | None) -> tuple[bool, bool, int, int, float]:
    """How far it is; other runs, and what a failure has left without callbacks' states, come last."""
    whole = cut.callbacks is not None
    return cut.run_id == run_id, whole, cut.incarnation, cut.step, cut.seconds


def _read_packed(path: Path) -> bytes | None:
    """The packed cut in an Orbax folder; None where there is none."""
    import orbax.checkpoint as ocp  # late, as in checkpoint.py

    wanted = ocp.args.PyTreeRestore(
        item={KEY: 0}, restore_args={KEY: ocp.RestoreArgs(np.ndarray)}, partial_restore=True
    )
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            found = checkpointer.restore(path.absolute(), wanted)[KEY]
    except Exception as error:
        reason = str(error).partition("\n")[0][:300]
        raise CheckpointError(f"cannot read checkpoint '{path}': {reason}") from error
    return found.tobytes() if isinstance(found, np.ndarray) else None


def _copied(value: Any) -> Any:
    """`value` as dicts and lists of its own, in their order, which flax' own copy would sort."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {_copied(name): _copied(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(one) for one in value]
    if isinstance(value, np.str_ | np.bytes_):
        return value.item()
    if isinstance(value, np.ndarray | np.generic):
        # flax would write these and could not read them, and it forgets the order of bytes.
        if value.dtype.kind in "OSU" or value.dtype.type is np.void:
            raise TypeError(f"an array of {value.dtype}, expected numbers or bools")
        return value.astype(value.dtype.newbyteorder("="), copy=False)
    return np.asarray(value) if isinstance(value, jax.Array) else value


def _tree(state: TrainState) -> dict[str, Any]:
    leaves = enumerate(jax.tree.leaves(state.optimizer))
    return {
        "params": state.network.params,
        "state": state.network.rest,
        "optimizer": {str(place): leaf for place, leaf in leaves},
    }
