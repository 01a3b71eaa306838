"""Where in a recording to begin: at an event, a step, an epoch or a time (C9)."""

import math
from typing import Any, NamedTuple

import numpy as np

from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed, Gap

from .segment import COLUMNS

LATEST = 2**63 - 1


class Place(NamedTuple):
    """The first entry whose `column` of the index has reached `value`."""

    column: str
    value: int

    def reached(self, entry: Committed | Gap) -> bool:
        """Whether an entry is there, or is past it."""
        if isinstance(entry, Gap):
            return self.column == "seq" and entry.last >= self.value
        event = entry.event
        match self.column:
            case "seq":
                return event.seq >= self.value
            case "time_ns":
                return event.time_ns >= self.value
            case "epoch":
                return entry.epoch >= self.value
        return event.hook.mode == "train" and entry.step >= self.value

    def before(self, rows: np.ndarray[Any, Any], later: bool) -> np.ndarray[Any, Any] | None:
        """The last row of a file's index that is certainly before it; None: the file begins past it.

        Args:
            later: it is not the recording's first file. One that begins inside of a validation
                does not know the step of training at first: 0 is then none.

        Returns:
            No row (an empty one) where the file cannot tell.
        """
        number = COLUMNS.index(self.column)
        known = rows[rows[:, number] > 0] if later and self.column == "step" else rows
        if not len(known):
            return rows[:0]
        row = int(np.searchsorted(known[:, number], self.value)) - 1
        return None if row < 0 else known[row : row + 1]


def place_of(**places: float | None) -> Place | None:
    """The one place that is given.

    Raises:
        ArgumentError: there are several, or it is no number of that kind.
    """
    given = {name: value for name, value in places.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise ArgumentError(f"one place at a time, got {', '.join(given)}")
    name, value = next(iter(given.items()))
    kinds = (int, float) if name == "time" else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < math.inf:
        kind = "a finite number" if name == "time" else "an int"
        raise ArgumentError(f"{name} must be {kind} of at least 0, got {value!r}")
    if name == "time":
        return Place("time_ns", min(round(value * 1e9), LATEST))
    return Place(name, min(int(value), LATEST))
