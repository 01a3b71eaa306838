"""A block's steps, once the device is done with them: what each of them shows and measures."""

from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from .moment import Block
from .outputs import ArrayHandle, Column, array_stub, columns, together


class TakenSteps:
    """Outputs of a block as callbacks see them, step by step; made at once for the whole block."""

    def __init__(self, block: Block) -> None:
        self._block, self._stacks = block, block.outputs.stacks()

    @cached_property
    def net_outputs(self) -> Column:
        """In training what the step gives; in evaluation `(mean loss, outputs, labels)`."""
        count = self._block.size
        if self._block.mode == "train":
            return columns(self._stacks.net_outputs, count)
        mean = columns(self._stacks.mean, count)
        return together([mean, columns(self._stacks.outputs, count, inline=0), self._labels], count)

    @cached_property
    def hyperparams(self) -> dict[str, Any]:
        """Those that follow a schedule, by name, one value per step of training."""
        return {name: stack.host() for name, stack in self._stacks.hyperparams.items()}

    def measured(self, place: int) -> tuple[Any, Any, Any]:
        """Loss, outputs and labels of a step of evaluation, on the host."""
        loss, outputs = jax.tree.map(itemgetter(place), self._hosts)
        return loss, outputs, np.asarray(self._block.batches[place][-1])

    @cached_property
    def _hosts(self) -> Any:
        return jax.tree.map(lambda stack: stack.host(), (self._stacks.loss, self._stacks.outputs))

    @property
    def _labels(self) -> Column:
        batches = self._block.batches
        shape, dtype = self._block.layout[-1]
        values = [ArrayHandle(shape, dtype, partial(itemgetter(-1), batch)) for batch in batches]
        return Column(values, [array_stub(shape, dtype)] * len(batches))
