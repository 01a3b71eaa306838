"""Interleaved measuring: each round runs every candidate once, so that what is compared is paired."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Candidate = Callable[[], float]  # carries out one run; returns seconds per step


class Figure(NamedTuple):
    """What several runs gave: their median, and between which values they lie."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """The figure of these runs."""
        return cls(statistics.median(values), min(values), max(values), len(values))


class Rounds:
    """Seconds per step of candidates, by name, one of each per round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = seconds

    def microseconds(self, name: str) -> Figure:
        """What a step took."""
        return Figure.of([one * 1e6 for one in self.seconds[name]])

    def ratio(self, name: str, to: str) -> Figure:
        """`name` over `to`, paired within each round."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return Figure.of([one / other for one, other in pairs])


def interleave(candidates: Mapping[str, Candidate], rounds: int) -> Rounds:
    """Run each candidate once to warm up, then once per round, every second round backwards."""
    for candidate in candidates.values():
        candidate()
    found: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            gc.collect()
            found[name].append(candidates[name]())
    return Rounds(found)


def repeated(measure: Callable[[], float], runs: int) -> Figure:
    """One measurement several times, after a warm-up."""
    measure()
    return Figure.of([measure() for _ in range(runs)])


def timed(work: Callable[[], object]) -> float:
    """Wall time of `work()` in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
