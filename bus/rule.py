"""Which steps or epochs a subscriber is asked about: plain numbers, judged without calling it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from railbus.schemas.hooks import Hook


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Lets an event at one of `hooks` pass if its number is a multiple of `every` and in range.

    The number is the step's (an evaluation counts its own) or that of the epoch of training, 0 in
    a lone evaluation, which always passes. The range is `first <= number < before`; None has no
    end. Events at other hooks pass.
    """

    hooks: frozenset[Hook]
    unit: Literal["steps", "epochs"]
    every: int = 1
    first: int = 0
    before: int | None = None

    def lets(self, step: int, epoch: int) -> bool:
        """Whether events of this place pass."""
        number = step if self.unit == "steps" else epoch
        if number == 0:
            return self.unit == "epochs"
        inside = number >= self.first and (self.before is None or number < self.before)
        return inside and number % self.every == 0


def passes(rules: Iterable[Rule], hook: Hook, step: int, epoch: int) -> bool:
    """Whether all `rules` let an event at `hook` pass."""
    return all(rule.lets(step, epoch) for rule in rules if hook in rule.hooks)
