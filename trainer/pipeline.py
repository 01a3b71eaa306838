"""The pipeline: gives blocks to the device ahead of the run, and takes back what it leaves out."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from railbus.schemas.hooks import Mode

from .arrays import Batch, Layout, layout_of
from .batches import BatchSource, Pass
from .blocks import Runner
from .moment import Block, Moment
from .program import Carry, TrainState
from .result import RunStats
from .runahead import TARGET_SECONDS, Pace

logger = logging.getLogger(__name__)


class Pipeline:
    """Where a run is, and the blocks that the device has been given beyond that point.

    The run asks for one batch and one step after another and finds each as if it had just been
    computed. What the run does not come to, after a stop, or must not have happened, after a
    change, `_rewind` takes back; nothing else does. Where the runner overwrites states
    (`exact=False`) training steps cannot be taken back: stops and changes wait until those on the
    device are through.

    Args:
        modes: the run's passes over data, if nobody stops it.
        state: before the first step.
        steps: training steps that an interrupted run has done.

    Attributes:
        every: the state is needed every so many training steps, so blocks end there.
        steps: training steps that the run has come to.
        left: steps that are computed already and wait to be taken.
    """

    def __init__(
        self,
        runner: Runner,
        sources: Mapping[Mode, BatchSource],
        modes: Iterator[Mode],
        pace: Pace,
        state: TrainState,
        stats: RunStats,
        steps: int = 0,
    ) -> None:
        self.every: Sequence[int] = ()
        self.steps, self.left = steps, 0
        self._runner, self._sources, self._modes = runner, sources, modes
        self._pace, self._stats = pace, stats
        self._base = Carry(state)  # what the oldest block starts from
        self._queue: deque[Block] = deque()
        self._used = 0  # steps of the oldest block that the run has come to
        self._current: Pass | None = None
        self._passes: deque[Pass] = deque()  # the current one and those read ahead into
        self._reading = 0  # which of them
        self._ended: int | None = None
        self._compiled: set[Any] = set()
        self._suspect: tuple[Exception, int] | None = None
        self._broken: Exception | None = None
        self._waiting: list[Callable[[TrainState], TrainState]] = []
        self._lost = False
        self._shut: dict[Mode, bool] = {}
        self._stopped = False
        self._changed = False
        self._open_step = False
        self._inside: dict[Mode, int] = {}  # of the data of the passes that this epoch has begun

    @property
    def steps_again(self) -> int:
        """Steps that the device has done a second time."""
        return self._runner.steps_again

    @property
    def here(self) -> Moment:
        """Where the run is."""
        lasting = not self._runner.donate
        if self._used:
            return Moment(self._queue[0], self._used, lasting=lasting)
        return Moment(None, carry=self._base, lasting=lasting)

    def batch(self) -> tuple[Batch, Layout]:
        """That of the coming step."""
        self._pop()
        if self._queue:
            head = self._queue[0]
            return head.batches[self._used], head.layout
        assert self._current is not None
        batch = self._current.peek()
        return batch, layout_of(batch)

    def clock(self, step: bool) -> int | None:
        """When the device was where the run is; None where it is not ahead of it, so it is now.

        Args:
            step: a step begins or has ended there; otherwise it is between the steps.
        """
        if step and self._queue and self._queue[0].landed:
            return self._queue[0].time(self._used)
        unused = len(self._queue) > 1 or (self._queue and self._used < self._queue[0].size)
        return self._ended if unused else None

    def epochs(self, inside: bool) -> dict[Mode, int]:
        """Which epoch of each `ArrayDataset` the run is in (`inside`) or comes to next."""
        sources = {mode: source for mode, source in self._sources.items() if source.plain}
        found: dict[Mode, int] = {mode: source.dataset.epoch for mode, source in sources.items()}
        return found | self._inside if inside else found

    def enter(self, mode: Mode) -> None:
        """The run comes to its next pass over data; what is left of the present one never happens."""
        self._pop()
        if mode == "train":
            self._inside = {}
        if self._current is not None:
            if self._queue and self._queue[0].passing is self._current:
                self._rewind()
            self._suspect = None
            self._passes.popleft().close()
            self._reading = max(self._reading - 1, 0)
        if not self._passes:
            self._open()
        self._current = self._passes[0]
        assert self._mode(self._current) == mode
        self._base = Carry(self._base.state)

    def more(self) -> bool:
        """Whether the pass has another batch.

        Raises:
            Exception: what reading it has raised.
        """
        if self.left:
            return True
        self._pop()
        assert self._current is not None
        begins = not self._current.begun
        if begins:
            self._begin(self._current)
            self._shut[self._mode(self._current)], self._changed = self._changed, False
        waits = bool(self._queue) and self._queue[0].passing is self._current
        if begins and not (waits or self._current.here() or self._current.taken):
            self._current.peek()  # says that there is nothing
        return waits or self._current.here()

    def _begin(self, passing: Pass) -> None:
        """The run comes to a pass; what was read of another epoch of its data never was.

        Callbacks may have set an `ArrayDataset` to another epoch, or iterated it, since.
        """
        dataset = passing.source.dataset
        if passing.epoch is not None and passing.epoch != dataset.epoch:
            self._rewind()
            for ahead, one in enumerate(self._passes):
                same = [other for other in list(self._passes)[:ahead] if _alike(other, one)]
                if one.epoch is not None:
                    one.expect(one.source.dataset.epoch + len(same))
        passing.begin()
        if passing.epoch is not None:
            self._inside[self._mode(passing)] = passing.epoch

    def bound(self) -> bool:
        """Whether a training step is on the device that cannot be taken back."""
        unused = sum(block.size for block in self._queue if block.mode == "train") - self._used
        return self._runner.donate and unused > 0

    def take(self) -> tuple[Block, int]:
        """The next step: its block and its place in it; waits for the device where it must.

        Raises:
            Exception: what the step, or compiling it, has raised.
        """
        while not self.left:
            if not self._queue and self._broken is not None:
                self._lost = True
                raise self._broken
            if not self._queue:
                self._dispatch()
            if self._queue:
                self._run_ahead()
                self._land(self._queue[0])
        self._used += 1
        self.left -= 1
        self._open_step = True
        head = self._queue[0]
        self.steps += head.mode == "train"
        return head, self._used - 1

    def stop(self) -> None:
        """The run will not come to another pass of training."""
        self._stopped = True

    def commit(self) -> None:
        """The end of the step that was taken is committed: it will not be taken back."""
        self._open_step = False
        if self._waiting and not self.bound():
            self._pop()

    def change(self, apply: Callable[[TrainState], TrainState], between: bool) -> None:
        """From here on the run goes on with `apply` of its state.

        Args:
            between: two passes, so the next such place is not run past before its callbacks had
                their say.
        """
        if self.bound():
            self._waiting.append(apply)
            return
        wasted, self._suspect = self._rewind(), None
        self._base = self._base._replace(state=apply(self._base.state))
        self._changed = self._changed or between
        self._pace.rolled_back(wasted)

    def end(self) -> TrainState | None:
        """The run is over: what it has not come to goes back, a step that has not ended too.

        Returns:
            The state where it ended; None where a block has failed that had overwritten it.
        """
        if self._runner.donate and self._queue and self._queue[0].mode == "train":
            self._base = self._queue[-1].end
            self._queue.clear()
            self._settle()
        else:
            self._used -= self._open_step
            self._rewind()
        return None if self._lost else self._base.state

    def close(self) -> None:
        """Let go of the data; after `end`.

        Raises:
            BaseException: the last that a data set has raised on being closed.
        """
        with ExitStack() as stack:
            for source in self._sources.values():
                stack.callback(source.end)
            while self._passes:
                stack.callback(self._passes.popleft().close)
        self._runner.forget()

    def _rewind(self) -> int:
        """Here is where the run is; nothing after it has happened. Returns the steps in vain.

        The one place where anything is taken back: younger blocks are dropped, the oldest is done
        again from its start up to here, and batches that are not trained on return to their pass.
        """
        if not self._queue:
            return 0
        head, used = self._queue[0], self._used
        again = used if used < head.size else 0
        dropped = sum(block.size for block in self._queue) - used
        if used:
            self._base = head.at(used)
        self._used = self._reading = self.left = 0
        if head.landed:
            self._runner.release(head.mode, head.batches, head.outputs)
        while self._queue:
            block = self._queue.pop()
            block.passing.give_back(block.batches[used if block is head else 0 :])
        if dropped:
            self._stats.rollbacks += 1
            self._stats.steps_dropped += dropped
        return dropped + again

    def _pop(self) -> None:
        """The oldest block is left behind once all its steps were taken."""
        if self._queue and self._used == self._queue[0].size:
            head = self._queue.popleft()
            self._base, self._used = head.end, 0
            self._runner.release(head.mode, head.batches, head.outputs)
            self._pace.committed(head.mode)
        if not self._queue:
            self._settle()

    def _settle(self) -> None:
        """The steps that changes have waited for are done."""
        for apply in self._waiting:
            self._base = self._base._replace(state=apply(self._base.state))
        self._waiting.clear()

    def _run_ahead(self) -> None:
        """Give the device what it can have beyond the oldest block.

        What goes wrong there is raised when the run comes to it, and asks for it again.
        """
        try:
            while len(self._queue) <= self._ahead and not self._held() and self._dispatch():
                pass
        except Exception as error:
            logger.debug("running ahead ends before %s", type(error).__name__)
            if self._runner.donate:
                self._broken = error  # asked for again, it would find its state overwritten

    def _held(self) -> bool:
        """Whether what follows would overwrite a state that somebody needs."""
        if not self._runner.donate:
            return False
        reading = self._mode(self._passes[self._reading])
        if self._waiting or (self._stopped and reading == "train"):
            return True
        return any(self._tip_step % one == 0 for one in self.every)

    @property
    def _tip_step(self) -> int:
        """The training step after which the device has nothing to do."""
        waiting = sum(block.size for block in self._queue if block.mode == "train")
        begun = self._used if self._queue and self._queue[0].mode == "train" else 0
        return self.steps + waiting - begun

    @property
    def _ahead(self) -> int:
        return 0 if self._suspect else self._pace.ahead

    def _dispatch(self) -> bool:
        """One more block; False where there is nothing to read or no way past a pass's end."""
        while not (passing := self._passes[self._reading]).more():
            if not passing.taken or not self._crosses():
                return False
            self._reading += 1
        mode = self._mode(passing)
        tip = self._queue[-1].end if self._queue else self._base
        if not self._queue or self._queue[-1].passing is not passing:
            tip = Carry(tip.state, None if passing is not self._current else tip.evaluation)
        batches = passing.read(self._length(mode, tip, passing.peek()), TARGET_SECONDS)
        try:
            block = Block(self._runner, passing, mode, tip, batches)
        except BaseException as error:
            passing.give_back(batches)
            if self._queue or not isinstance(error, Exception):
                raise
            self._search(mode, len(batches), error)
            return True
        if self._queue:
            self._queue[-1].spent = self._runner.donate and mode == "train"
        self._queue.append(block)
        self._stats.blocks += 1
        return True

    def _length(self, mode: Mode, tip: Carry, batch: Batch) -> int:
        length = min(self._pace.length(mode), self._runner.longest(mode, tip, batch))
        if mode == "train":
            length = min([length, *(one - self._tip_step % one for one in self.every)])
        return 1 if self._suspect else length

    def _crosses(self) -> bool:
        """Whether to read on into the next pass, which is then the one after `_reading`."""
        if self._stopped:
            return False
        if self._reading + 1 == len(self._passes) and not self._open():
            return False
        upcoming = self._passes[self._reading + 1]
        free = not (self._runner.donate or upcoming.source.told)
        return free and not self._shut.get(self._mode(upcoming), False)

    def _open(self) -> bool:
        mode = next(self._modes, None)
        if mode is None:
            return False
        passing = self._sources[mode].open()
        if passing.epoch is not None:
            before = [one for one in self._passes if not one.begun and _alike(one, passing)]
            passing.expect(passing.source.dataset.epoch + len(before))
        self._passes.append(passing)
        return True

    def _mode(self, passing: Pass) -> Mode:
        return "train" if passing.source is self._sources.get("train") else "eval"

    def _land(self, block: Block) -> None:
        """Wait for a block's outputs, and note how long it was on the device."""
        asked = time.perf_counter_ns()
        ready = block.outputs.ready
        try:
            block.outputs.wait()
        except Exception as error:
            self._search(block.mode, block.size, error)
            return
        self._note(block, asked, None if ready else time.perf_counter_ns())
        block.landed = True
        self.left = block.size
        self._clear()

    def _note(self, block: Block, asked: int, arrived: int | None) -> None:
        """When the device was at it; where it was done before it was asked for, by estimate."""
        now = arrived or time.perf_counter_ns()
        layout = block.mode, block.layout
        if layout not in self._compiled:
            block.began = block.given
        if self._ended is not None:
            self._stats.device_waited += max(block.began - self._ended, 0) / 1e9
            block.began = max(block.began, self._ended)
        if layout in self._compiled:
            seconds = (now - block.began) / 1e9
            self._pace.took(block.mode, block.size, seconds, at_most=arrived is None)
        self._compiled.add(layout)
        each = self._pace.seconds.get(block.mode, 0.0)
        likely = block.began + int(block.size * each * 1e9)
        block.ended = self._ended = now if arrived or not each else min(now, likely)
        self._stats.host_waited += (now - asked) / 1e9
        self._stats.device_busy += (block.ended - block.began) / 1e9

    def _search(self, mode: Mode, length: int, error: Exception) -> None:
        """The oldest block has failed: do its steps alone, so that those before the wrong one count.

        Raises:
            Exception: `error`, where the block was one step or cannot be done again.
        """
        if self._runner.donate and mode == "train":
            self._lost = True
            self._queue.clear()
            if length > 1:
                error.add_note(
                    f"railbus: it came from a block of {length} steps, which one is not known; with "
                    f"exact=False the state before it is overwritten and cannot be tried again"
                )
            raise error
        self._rewind()
        if length == 1:
            raise error
        self._suspect = error, length

    def _clear(self) -> None:
        """One more step of a block that failed has gone well alone."""
        if self._suspect is None:
            return
        error, length = self._suspect
        self._suspect = (error, length - 1) if length > 1 else None
        if self._suspect is None:
            self._rewind()
            error.add_note(
                "railbus: it came from a block of steps that end here; done again one by one, none "
                "of them failed, so which step it was is not known"
            )
            raise error


def _alike(one: Pass, other: Pass) -> bool:
    """Whether they read one dataset, perhaps as two sources."""
    return one.source.dataset is other.source.dataset
