"""The rows of the table: what is measured for each, and what it must reach."""

from collections.abc import Iterator

import endurance
import events
import memory
import peers
import recording
from loops import (
    Collected,
    Limit,
    Observed,
    Railbus,
    Schedule,
    Sleeper,
    filtered,
    plain,
    readers,
)
from networks import LARGE, SMALL, Case
from report import Row
from timing import Figure, Rounds, interleave

from railbus.trainer import ArrayDataset, RunAhead

ALLOWED = {SMALL: 1.25}  # others: 1.05
ALLOWED_OBSERVED = {SMALL: 1.35, LARGE: 1.07}
FASTER_THAN_PLAIN = 2.0
SLEEP, SLEEP_EVERY, ALLOWED_ASLEEP = 0.02, 100, 1.05
EVENTS_PER_SECOND = 80_000
REPLAYED_PER_SECOND = 60_000
ALLOWED_SCHEDULED = 2.0  # of lockstep
ALLOWED_FILTERED = 1.10  # of a run without callbacks
STATES = 3
ADDED, BYTES, SEEK = 10.0, 60.0, 20.0  # us and bytes an event; ms
RECORDED_ROUNDS = 9
FLAT, STEADY = 1.02, 1.05

LIMIT, RAILBUS, OBSERVED = "the limit", "Railbus, 3 callbacks", "Railbus, 3 and an observer"
BRIEF = "a run of one epoch alone"
PLAIN, LOCKSTEP = "plain jitted loop, reads the loss", "lockstep, 3 callbacks"
COLLECTED = "Railbus, 3 and a SummaryCollector"
SCHEDULED = "learning rate set at every step"
SCHEDULED_LOCKSTEP = "the same in lockstep"
NONE, FILTERED = "Railbus, no callbacks", "Railbus, 10 callbacks every(100)"
SLOW = f"a callback of {1000 * SLEEP:.0f} ms every {SLEEP_EVERY} steps"


class Network:
    """All candidates over one network, measured together.

    Args:
        with_peers: measure Keras too.
    """

    def __init__(self, case: Case, with_peers: bool) -> None:
        self.case, data = case, case.data()
        self._limit = Limit(case, data)
        self._railbus = Railbus(case, data, readers(), case.epochs)
        self._observed = Observed(case, data, readers(), case.epochs)
        lockstep = Railbus(case, data, readers(), case.few, RunAhead.off())
        # Those with a limit of their own stand next to the limit.
        self._candidates = {OBSERVED: self._observed.seconds, RAILBUS: self._railbus.seconds}
        self._candidates[LIMIT] = self._limit.seconds
        self._asleep: list[float] = []
        if case.name == LARGE:
            self._add_slow(data)
            collected = Collected(case, data, readers(), case.epochs)
            self._candidates[COLLECTED] = collected.seconds
        if case.name == SMALL:
            self._candidates[BRIEF] = Railbus(case, data, readers(), 1).seconds
            self._candidates[NONE] = Railbus(case, data, [], case.epochs).seconds
            self._candidates[FILTERED] = Railbus(case, data, filtered(), case.epochs).seconds
            off, few = RunAhead.off(), case.few
            self._candidates[SCHEDULED] = Railbus(case, data, [Schedule()], few).seconds
            alone = Railbus(case, data, [Schedule()], few, off)
            self._candidates[SCHEDULED_LOCKSTEP] = alone.seconds
        self._candidates[PLAIN] = plain(case, data, self._limit)
        self._candidates[LOCKSTEP] = lockstep.seconds
        self._peers = peers.candidates(case, data) if with_peers else {}
        self._candidates |= {name: candidate for name, (_, candidate) in self._peers.items()}

    def rows(self, rounds: int) -> Iterator[Row]:
        """Measure, and say what came out."""
        found, name = interleave(self._candidates, rounds), self.case.name
        yield self._row(found, LIMIT, None, f"blocks of {self._limit.block_steps}, {self._form}")
        stats = self._railbus.stats
        beside = f"{stats.blocks} blocks, device waited {stats.device_waited / stats.seconds:.0%}"
        yield self._row(found, RAILBUS, ALLOWED.get(name, 1.05), beside)
        beside = f"read {self._observed.seen} events, {self._observed.missed} in gaps"
        yield self._row(found, OBSERVED, ALLOWED_OBSERVED.get(name), beside)
        if COLLECTED in self._candidates:
            yield self._row(found, COLLECTED)
            times = found.ratio(COLLECTED, RAILBUS)
            beside = (
                "its thread shares the cores with XLA on a CPU; 20 histograms in so short a run"
            )
            yield Row(name, f"{COLLECTED} / without it", times, beside=beside)
        if BRIEF in self._candidates:
            yield self._row(found, BRIEF, None, "blocks have hardly grown to their length")
        yield self._row(found, PLAIN)
        faster, least = found.ratio(PLAIN, RAILBUS), FASTER_THAN_PLAIN if name == SMALL else None
        yield Row(name, "plain loop / Railbus, 3 callbacks", faster, least=least)
        yield self._row(found, LOCKSTEP)
        if FILTERED in self._candidates:
            times = found.ratio(FILTERED, NONE)
            yield Row(name, f"{FILTERED} / none", times, most=ALLOWED_FILTERED)
        if SCHEDULED in self._candidates:
            yield self._row(found, SCHEDULED)
            yield self._row(found, SCHEDULED_LOCKSTEP)
            times = found.ratio(SCHEDULED, SCHEDULED_LOCKSTEP)
            yield Row(name, f"{SCHEDULED} / lockstep", times, most=ALLOWED_SCHEDULED)
        for one, (fit, _) in self._peers.items():
            yield self._row(found, one, None, f"{fit.calls} calls in {fit.steps} steps")
        if self._asleep:
            yield self._slow_row(found)

    @property
    def _form(self) -> str:
        return "fused" if self._limit.form.fused else "dispatched"

    def _row(self, found: Rounds, what: str, most: float | None = None, beside: str = "") -> Row:
        each = f"{found.microseconds(what).median:.1f} us a step"
        beside = f"{each}; {beside}" if beside else each
        return Row(self.case.name, what, found.ratio(what, LIMIT), most=most, beside=beside)

    def _add_slow(self, data: ArrayDataset) -> None:
        case, sleeper = self.case, Sleeper(SLEEP, SLEEP_EVERY)
        run = Railbus(case, data, [sleeper], case.epochs)

        def seconds() -> float:
            found = run.seconds()
            self._asleep.append(sleeper.seconds / (case.epochs * case.steps))
            return found

        self._candidates[SLOW] = seconds

    def _slow_row(self, found: Rounds) -> Row:
        """Over the longer one of the limit's time and the callback's, round by round."""
        asleep = self._asleep[1:]  # the first was the warm-up
        rounds = zip(found.seconds[SLOW], found.seconds[LIMIT], asleep, strict=True)
        ratios = Figure.of([took / max(device, slept) for took, device, slept in rounds])
        shares = zip(asleep, found.seconds[LIMIT], strict=True)
        added = Figure.of([1 + slept / device for slept, device in shares])
        beside = f"of max(device, callback); their sum would be {added.median:.2f}"
        return Row(self.case.name, SLOW, ratios, most=ALLOWED_ASLEEP, beside=beside)


def bus_row(quick: bool) -> Row:
    """The bus without a trainer."""
    found = events.bus_alone(quick)
    beside = "events a second, each callback at both events of a step"
    return Row(
        "no network", "bus alone, 3 callbacks", found, "{:.0f}", None, EVENTS_PER_SECOND, beside
    )


def replay_row(quick: bool) -> Row:
    """A replay, without JAX."""
    found = events.replayed(quick)
    beside = "events a second: LossMonitor, EarlyStopping, TimeMonitor"
    return Row(
        "no network", "replay, 3 callbacks", found, "{:.0f}", None, REPLAYED_PER_SECOND, beside
    )


def memory_row(quick: bool) -> Row:
    """Peak memory of run-ahead over lockstep's."""
    megabytes, runs = (40, 1) if quick else (200, 3)
    size = memory.state_bytes(megabytes)
    off, on = memory.peaks(megabytes, 0, runs), memory.peaks(megabytes, memory.AHEAD, runs)
    over = Figure.of([(b - a) / size for a, b in zip(off, on, strict=True)])
    most = STATES + memory.buffer_bytes() / size
    beside = (
        f"states of {megabytes} MB; peaks {Figure.of(off).median / 1e6:.0f} MB in lockstep, "
        f"{Figure.of(on).median / 1e6:.0f} MB ahead"
    )
    return Row(
        "one wide layer", "peak memory above lockstep, ahead=2", over, most=most, beside=beside
    )


def recording_rows(case: Case, quick: bool) -> Iterator[Row]:
    """What a recording adds to a run and takes on disk, and how fast it is searched."""
    added, size, events = recording.added(case, 1 if quick else RECORDED_ROUNDS)
    beside = f"us an event, run by run, {events} events a run"
    yield Row(case.name, "recording adds", added, "{:.1f}", most=ADDED, beside=beside)
    yield Row(case.name, "recording on disk", size, "{:.1f}", most=BYTES, beside="bytes an event")
    seeks, count = recording.seeks(quick)
    beside = f"ms to an event by seq, step, epoch or time, in {count:.0e} events"
    yield Row("no network", "recording, seek", seeks, "{:.1f}", most=SEEK, beside=beside)


def endurance_rows(quick: bool) -> Iterator[Row]:
    """A long run's speed and memory, its end against its beginning."""
    found = endurance.endure(100_000 if quick else 1_000_000)
    what, one = f"run of {found['steps']:.0e} steps", lambda value: Figure(value, value, value, 1)
    for name, key, most in (("wall", "wall", STEADY), ("processor", "busy", None)):
        first, last = found[key]
        beside = f"{name} time: {first:.1f} us a step in the first tenth, {last:.1f} in the last"
        yield Row(SMALL, f"{what}: last / first tenth", one(last / first), most=most, beside=beside)
    early, late = found["memory"]
    beside = f"{early / 1e6:.0f} MB resident after a tenth, {late / 1e6:.0f} MB at the end"
    yield Row(SMALL, f"{what}: memory", one(late / early), most=FLAT, beside=beside)
