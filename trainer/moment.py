"""Blocks on the device, and what a run carries at any point inside of one."""

import time
from collections.abc import Sequence

from railbus.schemas.errors import StateGone
from railbus.schemas.hooks import Mode

from .arrays import Batch, layout_of
from .batches import Pass
from .blocks import Runner
from .program import Carry, TrainState


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
            raise StateGone(
                "with exact=False the state after this step was overwritten; declare it, for "
                "example needs = {'train_network': 100} for every 100 steps, or use exact=True"
            )
        done, carry = self._inside if self._inside[0] <= place else (0, self.start)
        if done < place:
            carry, _ = self._runner.run(self.mode, carry, self.batches[done:place])
            self._inside = place, carry
        return carry

    def time(self, place: int) -> int:
        """When the device had done so many of its steps, as if all had taken equally long."""
        return self.began + (self.ended - self.began) * place // self.size


class Moment:
    """What the run carries at one point of it, computed when somebody asks."""

    __slots__ = ("_block", "_carry", "_place")

    def __init__(self, block: Block | None, place: int = 0, carry: Carry | None = None) -> None:
        self._block, self._place, self._carry = block, place, carry

    @property
    def carry(self) -> Carry:
        """It, bit for bit as if the device had waited there (C5)."""
        if self._carry is None:
            assert self._block is not None
            self._carry, self._block = self._block.at(self._place), None
        return self._carry

    @property
    def state(self) -> TrainState:
        """The training state of it."""
        return self.carry.state
