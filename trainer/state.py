"""Handles: the exact state of a run at one event, for callbacks (`cb_params.train_network`)."""

from functools import lru_cache
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from railbus.schemas.errors import ArgumentError
from railbus.schemas.params import Live

from .arrays import Batch, Layout
from .cost import StepCost
from .moment import Moment
from .outputs import stub
from .program import TrainState
from .tree import same_structure


class NetworkHandle:
    """The network as it is at one event; it stays that of this event.

    Inside a block its values are computed when somebody asks, by doing the block's steps again up
    to this one; at a block's end (see `Callback.needs`) they are there.

    Attributes:
        source: the network as it was given to the trainer.
        cost: what a training step costs, counted when somebody asks.
    """

    __slots__ = ("_moment", "cost", "source")

    def __init__(self, source: Any, moment: Moment, cost: StepCost) -> None:
        self.source, self._moment, self.cost = source, moment, cost

    @property
    def params(self) -> Any:
        """Nested dict of the trained arrays, a new one each time; assign it to change the run."""
        return _copied(self._moment.state.network.params)

    @property
    def state(self) -> Any:
        """Nested dict of what else the network holds (batch statistics, RNGs); may be empty."""
        return _copied(self._moment.state.network.rest)

    @property
    def program_text(self) -> str:
        """The training step as it is given to the compiler, in StableHLO."""
        return self.cost.text

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"cb_params.train_network has params and state, no {name!r}; the values of a layer are "
            f"in train_network.params, and trainer.predict and trainer.eval use this very state"
        )

    def __repr__(self) -> str:
        return f"<{type(self.source).__name__} at one event>"


class OptimizerHandle:
    """The optimizer as it is at one event, computed as for `NetworkHandle`."""

    __slots__ = ("_moment",)

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    @property
    def state(self) -> Any:
        """Its optax state, a new tree each time."""
        return _copied(self._moment.state.optimizer)

    def __repr__(self) -> str:
        return "<the optimizer at one event>"


class Handles:
    """What `cb_params` shows of a run's state; the stubs in its snapshots are the same throughout."""

    def __init__(self, network: Any, state: TrainState, cost: StepCost) -> None:
        self._network, self._cost = network, cost
        self._network_stub = stub("network", type(network).__name__, _size(state.network.params))
        self._optimizer_stub = stub("optimizer", type(state.optimizer).__name__, "")

    def at(self, moment: Moment) -> dict[str, Live]:
        """The handles of one event."""
        network = NetworkHandle(self._network, moment, self._cost)
        return {
            "train_network": Live(network, self._network_stub),
            "optimizer": Live(OptimizerHandle(moment), self._optimizer_stub),
        }


def live(kind: str, value: Any) -> Live:
    """A live thing for `cb_params`: itself for callbacks here, a reference in a snapshot."""
    return Live(value, stub(kind, getattr(value, "__name__", type(value).__name__), ""))


def live_batch(batch: Batch, layout: Layout) -> Live:
    """A batch for `cb_params`, which snapshots only describe."""
    return Live(batch, _batch_stub(layout))


@lru_cache(maxsize=256)
def _batch_stub(layout: Layout) -> bytes:
    return stub("batch", "tuple", ", ".join(f"{dtype}{list(shape)}" for shape, dtype in layout))


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


def _copied(tree: Any) -> Any:
    """The same arrays in containers of their own: what is put into those changes no run."""
    return jax.tree.map(lambda leaf: leaf, tree)


def _size(params: Any) -> str:
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params))} parameters"
