"""The bus alone: lifecycle, ledger, publisher and callbacks in one lane, over steps of nothing."""

import itertools
from collections.abc import Iterator
from typing import Any

from anyio.from_thread import start_blocking_portal
from timing import Figure, repeated, timed

from railbus.bus import Draft, EventBus, Publisher
from railbus.schemas import Fire, Ledger, Need, Plan, lifecycle
from railbus.schemas.codec import pack
from railbus.schemas.params import Live
from railbus.subscribers import (
    Callback,
    EarlyStopping,
    LossMonitor,
    Roster,
    RunContext,
    TimeMonitor,
    replay,
    synthesize,
)

BURST = 500  # steps whose events travel together, as those of a block do
CALLBACKS = (1, 3, 10, 30)
SIZES = (100, 1024, 64 * 1024)


class Touch(Callback):
    """Looks at `cb_params` at both events of each step."""

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """The first event."""
        self.step = run_context.original_args().cur_step_num

    def on_train_step_end(self, run_context: RunContext) -> None:
        """The second."""
        self.value = run_context.original_args().net_outputs


class Steps:
    """A run's lifecycle over steps whose outputs are ready, `BURST` steps at a time.

    Args:
        payload: bytes that each step gives as its `net_outputs`, others than the step before.
    """

    def __init__(self, count: int, payload: int) -> None:
        plan = Plan(mode="train", epochs=1, batch_num=count)
        self._moments: Any = lifecycle(plan)
        self.moment: Fire | Need | None = next(self._moments)
        self._left, self._taken, self._burst = count, 0, 0
        values = [bytes([fill]) * payload for fill in range(2)]
        self._outputs = itertools.cycle([Live(value, pack(value)) for value in values])

    def burst(self) -> Iterator[Draft]:
        """Events until the next block."""
        self._burst = 0
        while self.moment is not None and self._burst < BURST:
            if isinstance(self.moment, Fire):
                changes = dict(self.moment.changes)
                if self.moment.hook == "on_train_step_end":
                    changes["net_outputs"] = next(self._outputs)
                decision = yield Draft(self.moment.hook, changes, self.moment.drop)
                self._answer(decision)
            else:
                self._meet(self.moment)

    def _meet(self, need: Need) -> None:
        if need is Need.BATCH:
            self._left -= 1
            self._answer(self._left >= 0)
            return
        self._burst += need is Need.STEP
        self._answer(False if need is Need.BOUND else None)

    def _answer(self, answer: Any) -> None:
        try:
            self.moment = self._moments.send(answer)
        except StopIteration:
            self.moment = None


def drive(steps: int, callbacks: int, payload: int) -> float:
    """Committed events per second of one run."""
    roster, ledger = Roster([Touch() for _ in range(callbacks)]), Ledger()
    bus, work = EventBus(), Steps(steps, payload)
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(bus.open("run", roster.workers)) as log:
            roster.enter(ledger, lambda mode: False)
            publisher = Publisher(log, roster.participants, ledger)

            def run() -> None:
                while work.moment is not None:
                    publisher.publish(work.burst())

            seconds = timed(run)
            roster.exit(None)
    return publisher.sequencer.seq / seconds


def bus_alone(quick: bool) -> Figure:
    """Events per second with three callbacks and a loss of a few bytes."""
    return repeated(lambda: drive(2_000 if quick else 20_000, 3, 8), 3 if quick else 7)


def replayed(quick: bool) -> Figure:
    """Events per second of a replay to three callbacks, of a synthetic run of two epochs."""
    made = synthesize(2, 1_000 if quick else 10_000, [1.0, 0.5])

    def measure() -> float:
        callbacks = [LossMonitor(1000), EarlyStopping("loss", patience=9), TimeMonitor()]
        return len(made) / timed(lambda: replay(made, callbacks))

    return repeated(measure, 3 if quick else 7)


def growth(quick: bool) -> dict[tuple[int, int], Figure]:
    """Events per second by (callbacks, bytes of a snapshot's payload)."""
    steps, runs = (300, 1) if quick else (3_000, 5)

    def measure(callbacks: int, size: int) -> Figure:
        return repeated(lambda: drive(steps, callbacks, size), runs)

    return {(count, size): measure(count, size) for size in SIZES for count in CALLBACKS}
