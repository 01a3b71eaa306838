"""The run loop: the lifecycle's events go onto the bus, its needs are met by the pipeline."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from railbus.bus.publisher import Draft, Drafts, Publisher
from railbus.schemas.codec import pack, unpack
from railbus.schemas.events import Decision, StopRequest
from railbus.schemas.hooks import Hook, Mode
from railbus.schemas.lifecycle import Fire, Need, Plan, lifecycle
from railbus.schemas.params import Ledger, Live

from .moment import Block, Moment
from .pipeline import Pipeline
from .program import Program, TrainState
from .result import RunStats
from .saver import Saver
from .state import Handles, live_batch
from .taken import TakenSteps
from .traced import Traced


class RunLoop:
    """Drives one run in the thread that trains.

    It goes through the lifecycle as if the device waited at every event; the pipeline sees to it
    that it need not.

    Attributes:
        metrics, history, step, epoch: what the result shows.
        resuming: an interrupted run goes on, and its callbacks are still setting themselves up.
        batches: steps of the present epoch whose end was committed; None between two epochs.
        plan: the shape of the run.
        stop: what a callback has ended the run with, for good.
        saver: cuts the run for checkpoints.
    """

    saver: Saver

    def __init__(
        self, plan: Plan, program: Program, pipeline: Pipeline, handles: Handles, stats: RunStats
    ) -> None:
        self.metrics: Mapping[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.resuming = plan.resumed is not None
        self.step = 0 if plan.resumed is None else plan.resumed.step
        self.epoch = plan.initial_epoch if plan.resumed else 0
        self.batches: int | None = None
        self._batch_num = plan.batch_num
        self.stop: StopRequest | None = None
        self.handles = handles
        self.traced = Traced(plan.mode, pipeline, self.handles)
        self.ledger = Ledger(self.traced.writes())
        self.plan, self._program, self._pipeline, self._stats = plan, program, pipeline, stats
        self._moments = lifecycle(plan)
        self._moment: Fire | Need | None = next(self._moments)
        self._block: Block | None = None
        self._steps: TakenSteps | None = None
        self._measured: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        self._outputs: dict[Mode, Live] = {}
        self._shown: Live | None = None  # of the last training step whose end was committed
        self._start = pipeline.here.state
        self._stopped = False
        self._resume: Callable[[], Mapping[str, bytes]] = dict
        self._bequest: Callable[[TrainState], TrainState] | None = None

    @property
    def trains(self) -> bool:
        """Whether it is more than a lone evaluation."""
        return self.plan.mode == "train"

    @property
    def steps_again(self) -> int:
        """Steps that the device has done a second time."""
        return self._pipeline.steps_again

    @property
    def here(self) -> Moment:
        """What the run carries at the present event."""
        return self._pipeline.here

    @property
    def counters(self) -> dict[str, int]:
        """Those of the last training step whose end was committed."""
        done = len(self.losses[: self.batches])
        return {"cur_step_num": self.step, "cur_epoch_num": self.epoch, "cur_batch_num": done}

    def committed(self) -> dict[str, Any]:
        """Where the run is, as a `Cut` has it; nothing of an event that was not committed."""
        inside = self.batches is not None
        params = self.ledger.kept()
        if self._shown is not None:
            params["net_outputs"] = self._shown.packed
        if "cur_epoch_num" in self.ledger.params:
            shown = ("cur_epoch_num", "cur_batch_num")
            params |= {key: pack(self.counters[key], key) for key in shown}
        return {
            "step": self.step,
            "epoch": self.epoch,
            "batches": self.batches,
            "batch_num": self._batch_num,
            "data": self._pipeline.epochs(inside),
            "losses": self.losses[: self.batches],
            "history": [one for one in self.history if not (inside and one["epoch"] == self.epoch)],
            "metrics": dict(self.metrics),
            "params": params,
        }

    def resume_with(self, resume: Callable[[], Mapping[str, bytes]]) -> None:
        """An interrupted run goes on.

        Args:
            resume: called once the callbacks have set themselves up; gives the `params` of what
                `committed` gave.
        """
        self._resume = resume

    def drive(self, publisher: Publisher) -> None:
        """The whole run, from its first event to its last."""
        while self._moment is not None:
            if isinstance(self._moment, Fire):
                publisher.publish(self._drafts())
            else:
                self._moment = self._next(self._meet(self._moment))

    def end(self) -> TrainState | None:
        """Hand back what was read and not trained on.

        Returns:
            The state after the last step whose end was committed, changes of callbacks included;
            None where a block has failed that had overwritten it.
        """
        state = self._pipeline.end()
        return state if state is None or self._bequest is None else self._bequest(state)

    def failed(self, decision: Decision) -> None:
        """`on_exception` is committed: what is assigned there holds for the state at the end."""
        self._bequest = self.traced.heed(decision, self.ledger)

    def close(self) -> None:
        """Let go of the data and of what callbacks were shown; after `end`.

        Raises:
            BaseException: the last that a data set has raised on being closed.
        """
        self.ledger.close_for_good()
        self._resume = dict
        self._pipeline.close()

    def need(self, every: Sequence[int]) -> None:
        """Callbacks look at the state every so many steps."""
        self._pipeline.every = every

    def _drafts(self) -> Drafts:
        """The events up to where the run must wait for the device: one burst."""
        pipeline = self._pipeline
        while (moment := self._moment) is not None:
            if isinstance(moment, Fire):
                hook = moment.hook
                changes = {**moment.changes, **self._changes(hook)}
                at = pipeline.clock(hook.is_step)
                decision = yield Draft(hook, changes, moment.drop + self._drop(hook), at)
                self._heed(hook, decision)
                self._moment = self._next(decision)
            elif moment is Need.METRICS or not pipeline.left:
                return
            else:
                self._moment = self._next(self._meet(moment))

    def _next(self, answer: Any) -> Fire | Need | None:
        try:
            return self._moments.send(answer)
        except StopIteration:
            return None

    def _changes(self, hook: Hook) -> dict[str, Any]:
        """What the run itself puts into `cb_params` for an event, beside the counters."""
        if hook is Hook.TRAIN_STEP_BEGIN:
            return {"train_dataset_element": live_batch(*self._pipeline.batch())}
        if hook is Hook.TRAIN_STEP_END:
            changes = self.handles.at(self._pipeline.here)
            changes["net_outputs"] = self._outputs["train"]
            return changes | self.traced.moved if self.traced.moved else changes
        match hook:
            case Hook.EVAL_STEP_BEGIN:
                return {"eval_dataset_element": live_batch(*self._pipeline.batch())}
            case Hook.EVAL_STEP_END:
                return {"net_outputs": self._outputs["eval"]}
            case Hook.TRAIN_EPOCH_BEGIN:
                self._pipeline.enter("train")
            case Hook.EVAL_BEGIN if self.trains:
                self.saver.hold()
            case Hook.EVAL_EPOCH_BEGIN:
                self._pipeline.enter("eval")
                self._program.metrics.reset()
            case Hook.EVAL_END:
                return self._results()
            case Hook.TRAIN_EPOCH_END:
                outputs = self._outputs.get("train")
                return self._close_epoch() | ({} if outputs is None else {"net_outputs": outputs})
        return {}

    def _drop(self, hook: Hook) -> tuple[str, ...]:
        """A validation's outputs do not outlast it, even where no training step has given any."""
        if hook in (Hook.TRAIN_EPOCH_BEGIN, Hook.TRAIN_END):
            return ("epoch_loss",)
        leave = hook is Hook.TRAIN_EPOCH_END and "train" not in self._outputs
        return ("net_outputs",) if leave else ()

    def _heed(self, hook: Hook, decision: Decision) -> None:
        """An event was committed: note how far the run is, apply what was patched."""
        if hook is Hook.TRAIN_EPOCH_BEGIN:
            self.epoch = (self.epoch or self.plan.initial_epoch) + 1
            self.batches, self.losses = 0, []
            self._batch_num = self.ledger.params["batch_num"]
        elif hook is Hook.EVAL_STEP_END:
            self._pipeline.commit()
        elif hook is Hook.TRAIN_STEP_END:
            assert self.batches is not None
            self._pipeline.commit()
            self.step += 1
            self.batches += 1
            self._shown = self._outputs["train"]
        elif hook is Hook.TRAIN_EPOCH_END:
            self.batches = None
            self._batch_num = self.ledger.params["batch_num"]
        if not decision.goes_on:
            self._apply(hook, decision)
        if self.saver.due or self._stopped:
            self.saver.committed(hook, self._stopped and not self._pipeline.bound())

    def _apply(self, hook: Hook, decision: Decision) -> None:
        """What an event's acks ask for beside going on."""
        if decision.stop("train") is not None:
            if hook.mode == "eval" and decision.lasting is None and not self._stopped:
                self.saver.interrupted()
            self._halt(decision.lasting)
        if decision.patches and (apply := self.traced.heed(decision, self.ledger)) is not None:
            self._pipeline.change(apply, between=not hook.is_step)

    def _halt(self, stop: StopRequest | None) -> None:
        """No further step of training is begun."""
        self._stopped, self.stop = True, self.stop or stop
        self._pipeline.stop()

    def _meet(self, need: Need) -> bool | None:
        """What the lifecycle asks for."""
        if need is Need.BATCH:
            return self._pipeline.more()
        if need is Need.BOUND:
            return self._pipeline.bound()
        if need is Need.STEP:
            self._step()
        elif need is Need.METRICS:
            self._measured = self._measure()
        elif need is Need.RESUME:
            self._go_on()
        return None

    def _go_on(self) -> None:
        """Everything is where the interrupted run had it, whatever setting up has changed."""
        start, place = self._start, self.plan.resumed
        assert place is not None
        kept = {key: Live(unpack(packed), packed) for key, packed in self._resume().items()}
        self._pipeline.change(lambda _: start, between=False)
        self.traced.reset()
        self.ledger.publish({**kept, **self.traced.values}, ("resumed_step", "resumed_epoch"))
        if "net_outputs" in kept:
            self._outputs["train"] = self._shown = kept["net_outputs"]
        self.step, self.epoch, self.batches = place.step, place.epoch, place.batches
        self.resuming = False
        if place.stop is not None:
            self._halt(place.stop)

    def _step(self) -> None:
        """The next step, from its block's outputs."""
        block, place = self._pipeline.take()
        if block is not self._block or self._steps is None:
            self._block, self._steps = block, TakenSteps(block)
        self._outputs[block.mode] = outputs = self._steps.net_outputs.live(place)
        if block.mode == "eval":
            self._stats.eval_steps += 1
            if self._program.metrics.on_host:
                self._program.metrics.update_host(*self._steps.measured(place))
            return
        self._stats.steps += 1
        value = outputs.value
        self.losses.append(float(value[0] if isinstance(value, tuple) else value))
        if self._steps.hyperparams:
            self.traced.follow({name: one[place] for name, one in self._steps.hyperparams.items()})

    def _results(self) -> dict[str, Any]:
        """Metrics of an evaluation; none where a stop came before its first batch."""
        metrics, self.metrics = self._measured
        if self.plan.mode == "eval":
            self.metrics = metrics
            return {"metrics": metrics}
        return {"metrics": metrics, "eval_results": self.metrics}

    def _measure(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The metrics alone, and with the mean loss."""
        evaluation = self._pipeline.here.carry.evaluation
        if evaluation is None:
            return {}, {}
        metrics, eval_loss = self._program.results(evaluation)
        return metrics, {**metrics, "eval_loss": eval_loss}

    def _close_epoch(self) -> dict[str, Any]:
        """Note the epoch in the history; its mean loss, where it has had a step."""
        record: dict[str, Any] = {"epoch": self.epoch}
        if self.losses:
            record["loss"] = float(np.mean(self.losses))
        shown = {"epoch_loss": record["loss"]} if self.losses else {}
        if self.plan.validates(self.epoch):
            record.update(self.metrics)
        self.history.append(record)
        return shown
