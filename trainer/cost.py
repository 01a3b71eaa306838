"""What a training step costs, as XLA counts it."""

from functools import cached_property
from typing import Any

import jax

from .arrays import Layout
from .program import Program, TrainState
from .tree import shapes_of


class StepCost:
    """Floating-point operations of one training step; counted when somebody asks, once.

    None where XLA does not know. It counts the body of a loop inside of the step once, whatever its
    trip count, and calls into other libraries not at all.

    Args:
        arrays: the data set's, where they are on the device; `fed` is what comes with each step.
    """

    def __init__(self, program: Program, arrays: Any, state: TrainState, fed: Layout) -> None:
        struct: Any = jax.ShapeDtypeStruct  # it has no types
        batch = tuple(struct(shape, dtype) for shape, dtype in fed)
        self._arguments = shapes_of((arrays, None, state)), batch
        self._program = program

    @property
    def model_flops(self) -> float | None:
        """Those of the step as it is written."""
        return _flops(self._lowered.cost_analysis())

    @cached_property
    def hardware_flops(self) -> float | None:
        """Those of the step as it is compiled; compiles it alone, which may take a while."""
        return _flops(self._lowered.compile().cost_analysis())

    @property
    def text(self) -> str:
        """The step as it is given to the compiler, in StableHLO."""
        return str(self._lowered.as_text())

    @cached_property
    def _lowered(self) -> Any:
        known, batch = self._arguments
        return self._program.step("train").lower(*known, batch)


def _flops(analysis: Any) -> float | None:
    flops = (analysis or {}).get("flops", 0.0)
    return float(flops) if flops > 0 else None
