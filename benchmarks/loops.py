"""The training loops that are compared: the limit, Railbus in its settings, and a plain loop."""

import itertools
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from networks import Case, loss_fn, optimizer
from timing import Candidate, timed

from railbus.schemas.events import Event
from railbus.subscribers import Callback, RunContext, SummaryCollector, every
from railbus.trainer import ArrayDataset, RunAhead, Trainer
from railbus.trainer.blocks import Outputs, Runner, choose
from railbus.trainer.metrics import MetricSet
from railbus.trainer.network import adapt
from railbus.trainer.program import Carry, Program, TrainState

BLOCK_SECONDS = 0.05
IN_FLIGHT = 2  # blocks that the device has while the limit reads the one before them


class ReadLoss(Callback):
    """Reads the loss at every step, as a monitor does."""

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Read it."""
        self.loss = float(run_context.original_args().net_outputs)


class Sleeper(Callback):
    """Takes some time every so many steps, as something that writes or sends does.

    Attributes:
        seconds: slept in the last run.
    """

    def __init__(self, sleep: float, every: int) -> None:
        self._sleep, self._every = sleep, every
        self.seconds = 0.0

    def on_train_begin(self, run_context: RunContext) -> None:
        """A new run."""
        self.seconds = 0.0

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Sleep where it is time to."""
        if run_context.original_args().cur_step_num % self._every == 0:
            self.seconds += timed(lambda: time.sleep(self._sleep))


class Schedule(Callback):
    """Sets another learning rate at every step, so that nothing may be run ahead."""

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Set it."""
        params = run_context.original_args()
        params.learning_rate = 1e-2 / (1 + params.cur_step_num)


class Limit:
    """Railbus's own compiled block in fixed lengths of about 50 ms, with no events at all.

    It reads the same `ArrayDataset`, fills the same buffers and reads every loss, two blocks
    late, so that the device never waits. Blocks go across epochs.
    """

    def __init__(self, case: Case, data: ArrayDataset) -> None:
        self._case, self._data = case, data
        network = adapt(case.build())
        program = Program(network, network, loss_fn, optimizer(), MetricSet.of(None))
        first = next(self._batches())
        values = network.init(jax.random.key(0), program.inputs(first))
        self.program = program
        self.start = Carry(TrainState(values, program.init_optimizer(values)))
        self.form = choose("auto", program, self.start, {"train": first}, {})
        self._runner = Runner(program, self.form.fused, {})
        self._most = self._runner.longest("train", self.start, first)
        self.block_steps = self._calibrated()

    def seconds(self) -> float:
        """Seconds per step of one run."""
        return timed(self._run) / (self._case.epochs * self._case.steps)

    def _batches(self) -> Iterator[tuple[Any, ...]]:
        for _ in range(self._case.epochs):
            yield from self._data

    def _run(self) -> list[np.ndarray[Any, Any]]:
        carry, waiting, losses = self.start, deque[tuple[Any, Outputs]](), []
        batches = self._batches()
        while block := list(itertools.islice(batches, self.block_steps)):
            carry, outputs = self._runner.run("train", carry, block)
            waiting.append((block, outputs))
            if len(waiting) > IN_FLIGHT:
                losses.append(self._read(*waiting.popleft()))
        losses += [self._read(*one) for one in waiting]
        return losses

    def _read(self, block: list[tuple[Any, ...]], outputs: Outputs) -> np.ndarray[Any, Any]:
        outputs.wait()
        losses = outputs.stacks().net_outputs.host()
        self._runner.release("train", block, outputs)
        return losses

    def _calibrated(self) -> int:
        """Steps that take the device about 50 ms."""
        self.block_steps = min(16, self._most)
        block = list(itertools.islice(self._batches(), self.block_steps))

        def once() -> None:
            self._read(block, self._runner.run("train", self.start, block)[1])

        once()
        each = min(timed(once) for _ in range(5)) / len(block)
        return max(1, min(self._most, int(BLOCK_SECONDS / each)))


class Railbus:
    """`Trainer.train` over the same steps, by the wall clock around it."""

    def __init__(
        self,
        case: Case,
        data: ArrayDataset,
        callbacks: list[Callback],
        epochs: int,
        run_ahead: RunAhead | None = None,
    ) -> None:
        self._case, self._data, self._epochs = case, data, epochs
        self.callbacks = callbacks
        scheduled = any(isinstance(one, Schedule) for one in callbacks)
        optimized = optax.inject_hyperparams(optax.sgd)(1e-2) if scheduled else optimizer()
        self.trainer = Trainer(case.build(), loss_fn, optimized, run_ahead=run_ahead or RunAhead())
        self.stats: Any = None

    def seconds(self) -> float:
        """Seconds per step of one run."""
        return timed(self._run) / (self._epochs * self._case.steps)

    def _run(self, run_id: str | None = None) -> None:
        result = self.trainer.train(self._epochs, self._data, self.callbacks, run_id=run_id)
        self.stats = result.stats


class Observed(Railbus):
    """The same with an observer of everything, which another thread reads.

    Attributes:
        seen, missed: events of the last run that it read, and those in gaps.
    """

    seen = missed = runs = 0

    def seconds(self) -> float:
        """Seconds per step of one run; what it has buffered is read afterwards."""
        self.runs += 1
        name = f"observed-{self.runs}"
        observer = self.trainer.bus.observe(run_id=name)
        reader = threading.Thread(target=self._watch, args=(observer,))
        reader.start()
        seconds = timed(lambda: self._run(name))
        reader.join()
        return seconds / (self._epochs * self._case.steps)

    def _watch(self, observer: Any) -> None:
        self.seen = self.missed = 0
        for event in observer:
            if isinstance(event, Event):
                self.seen += 1
            else:
                self.missed += event.last - event.first + 1


class Collected(Railbus):
    """The same with a `SummaryCollector`, which writes event files from its own thread."""

    def seconds(self) -> float:
        """Seconds per step of one run, until all is written."""
        with tempfile.TemporaryDirectory() as folder:
            self.callbacks = [*readers(), SummaryCollector(folder)]
            return super().seconds()


def plain(case: Case, data: ArrayDataset, limit: Limit) -> Candidate:
    """The loop that everybody writes: the same step, jitted, its loss read each time."""
    step = limit.program.step("train")

    def loop() -> None:
        state, losses = limit.start.state, []
        for _ in range(case.few):
            for batch in data:
                state, outputs = step(None, None, state, batch)
                losses.append(float(outputs.net_outputs))

    return lambda: timed(loop) / (case.few * case.steps)


def readers(count: int = 3) -> list[Callback]:
    """The three callbacks of the benchmarks."""
    return [ReadLoss() for _ in range(count)]


def filtered(count: int = 10) -> list[Callback]:
    """Callbacks that look at every 100th step only."""
    return [every(100, ReadLoss()) for _ in range(count)]
