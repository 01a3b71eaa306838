"""Recordings: what they add to a run, what they take on disk, how fast they are searched."""

import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loops import Railbus, readers
from networks import Case
from timing import Figure, interleave, timed

from railbus.bus import Recording
from railbus.bus.about import About
from railbus.bus.folder import FOLDER, segment_name
from railbus.bus.segment import SegmentWriter
from railbus.schemas import Decision, Event, Hook, Plan
from railbus.schemas.codec import pack
from railbus.schemas.events import Committed

EPOCHS = 36
EPOCH_STEPS = 1000
SEEKS = 40  # of each kind


class Recorded(Railbus):
    """The same run, recorded; `sizes` are bytes on disk of an event, one of each run."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sizes: list[float] = []

    def _run(self, run_id: str | None = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = self.trainer.train(self._epochs, self._data, self.callbacks, record=folder)
            self.stats = result.stats
            size = sum(one.stat().st_size for one in Path(folder).rglob("*.mcap"))
            self.sizes.append(size / self.stats.events)


def added(case: Case, rounds: int) -> tuple[Figure, Figure, int]:
    """Microseconds that recording adds to an event, paired; its bytes on disk; events of a run."""
    data = case.data()
    plain, recorded = (kind(case, data, readers(), EPOCHS) for kind in (Railbus, Recorded))
    found = interleave({"plain": plain.seconds, "recorded": recorded.seconds}, rounds).seconds
    events = recorded.stats.events
    scale = 1e6 * EPOCHS * case.steps / events
    pairs = zip(found["recorded"], found["plain"], strict=True)
    times = Figure.of([scale * (one - other) for one, other in pairs])
    return times, Figure.of(recorded.sizes), events


def seeks(quick: bool) -> tuple[Figure, int]:
    """Milliseconds from the call to the first entry, by a place of any kind; and of how many."""
    count = 20_000 if quick else 1_000_000
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), count)
        recording = Recording(folder)
        places: dict[str, Callable[[], float]] = {
            "seq": lambda: rng.randrange(count),
            "step": lambda: rng.randrange(1, count // 2),
            "epoch": lambda: rng.randrange(1, count // 2 // EPOCH_STEPS),
            "time": lambda: rng.uniform(0, count * 1e-5),
        }
        took = [
            1e3 * timed(partial(_first, recording, name, place()))
            for name, place in places.items()
            for _ in range(SEEKS)
        ]
    return Figure(statistics.median(took), min(took), max(took), len(took)), count


def _first(recording: Recording, name: str, value: float) -> None:
    next(iter(recording.entries(**{name: value})))


def make(folder: Path, count: int) -> None:
    """A recording of so many events of training steps, 10 us apart."""
    (folder / FOLDER).mkdir()
    about = About(run_id="run", incarnation=0, plan=Plan(mode="train", epochs=10**6))
    rng = random.Random(1)
    with (folder / FOLDER / segment_name(0, 0)).open("xb") as file:
        writer = SegmentWriter(file, about, {})
        for seq in range(count):
            writer.write(_entry(seq, rng.random()))
        writer.seal()


def _entry(seq: int, loss: float) -> Committed:
    step = 1 + seq // 2
    hook = Hook.TRAIN_STEP_END if seq % 2 else Hook.TRAIN_STEP_BEGIN
    event = Event(
        run_id="run",
        incarnation=0,
        seq=seq,
        hook=hook,
        time_ns=seq * 10_000,
        wall_ns=seq * 10_000,
        snapshot=pack({"mode": "train", "cur_step_num": step, "net_outputs": loss}),
    )
    decision = Decision(run_id="run", seq=seq, hook=hook)
    return Committed(event, decision, (), step, 1 + (step - 1) // EPOCH_STEPS)
