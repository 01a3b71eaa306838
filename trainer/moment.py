"""Blocks on the device, and what a run carries at any point inside of one."""

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from railbus.schemas.errors import StateGone
from railbus.schemas.hooks import Mode

from .arrays import Batch, layout_of
from .batches import Pass
from .blocks import Runner
from .program import Carry, TrainState

GONE = (
    "with exact=False the state after this step was overwritten; declare it, for example "
    "needs = {'train_network': 100} for every 100 steps, or use exact=True"
)


class Block:
    """Steps on the device, all of one pass.

    Attributes:
        size: how many they are; `layout` is that of their batches.
        start, end: what the run carries before and after it.
        began, ended: when the device was at it, in nanoseconds of the performance counter.
        given: when it had been compiled and was on its way.
        landed: the outputs have arrived.
        spent: the device has been given what follows, which overwrites `end` (`exact=False`).
    """

    def __init__(
        self, runner: Runner, passing: Pass, mode: Mode, start: Carry, batches: Sequence[Batch]
    ) -> None:
        self.passing, self.mode, self.batches, self.start = passing, mode, batches, start
        self.began = self.ended = time.perf_counter_ns()
        self.end, self.outputs = runner.run(mode, start, batches)
        self.given = time.perf_counter_ns()
        self.landed = self.spent = False
        self.size, self.layout = len(batches), layout_of(batches[0])
        self._runner = runner
        self._inside = 0, start

    def at(self, place: int) -> Carry:
        """What the run carries after so many of its steps; done again where that is inside.

        Raises:
            StateGone: it was overwritten.
        """
        if place == self.size and not self.spent:
            return self.end
        if self.mode == "train" and self._runner.donate:
            raise StateGone(GONE)
        done, carry = self._inside if self._inside[0] <= place else (0, self.start)
        if done < place:
            carry, _ = self._runner.run(self.mode, carry, self.batches[done:place])
            self._inside = place, carry
            self._runner.steps_again += place - done
        return carry

    def time(self, place: int) -> int:
        """When the device had done so many of its steps, as if all had taken equally long."""
        return self.began + (self.ended - self.began) * place // self.size


class Moment:
    """What the run carries at one point of it, computed when somebody asks.

    Args:
        lasting: nothing overwrites it; otherwise who asks gets a copy.
    """

    __slots__ = ("_block", "_carry", "_found", "_lasting", "_place")

    def __init__(
        self,
        block: Block | None,
        place: int = 0,
        carry: Carry | None = None,
        lasting: bool = True,
    ) -> None:
        self._block, self._place, self._carry, self._lasting = block, place, carry, lasting
        self._found: Carry | None = carry if lasting else None

    @property
    def carry(self) -> Carry:
        """It, bit for bit as if the device had waited there (C5).

        Raises:
            StateGone: it was overwritten.
        """
        block = self._block
        if self._found is None:
            found = self._carry if block is None else block.at(self._place)
            assert found is not None
            self._found = found if self._lasting else _copy(found)
            self._block = self._carry = None
        return self._found

    @property
    def state(self) -> TrainState:
        """The training state of it."""
        return self.carry.state


def _copy(carry: Carry) -> Carry:
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(carry)):
        raise StateGone(GONE)
    return Carry(*jax.tree.map(jnp.copy, tuple(carry)))
