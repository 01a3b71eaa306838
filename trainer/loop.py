"""The run loop: the lifecycle's events go onto the bus, its needs are met by the program."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from railbus.bus.publisher import Draft, Drafts, Publisher
from railbus.schemas.events import Decision
from railbus.schemas.hooks import Hook, Mode
from railbus.schemas.lifecycle import Fire, Need, Plan, lifecycle
from railbus.schemas.params import Ledger, Live

from .batches import Batch, BatchSource
from .program import Program, TrainState
from .result import RunStats
from .state import Handles, live_batch, live_outputs, shown
from .traced import Traced


class RunLoop:
    """Drives one run in the thread that trains; one step per block.

    Attributes:
        state: what the device holds now.
        committed: the state after the last step whose end was committed, patches included.
        metrics, history, step, epoch: what the result shows.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        state: TrainState,
        sources: Mapping[Mode, BatchSource],
        network: Any,
        stats: RunStats,
    ) -> None:
        self.state = self.committed = state
        self.metrics: Mapping[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.step = self.epoch = 0
        self.handles = Handles(network, state)
        self.traced = Traced(plan.mode, state, self.handles)
        self.ledger = Ledger(self.traced.writes())
        self._plan, self._program, self._stats = plan, program, stats
        self._sources = sources
        self._moments = lifecycle(plan)
        self._moment: Fire | Need | None = next(self._moments)
        self._mode: Mode = plan.mode
        self._opening = True
        self._batch: Batch | None = None
        self._evaluation: Any = None
        self._outputs: dict[Mode, Live] = {}
        self._losses: list[float] = []

    @property
    def trains(self) -> bool:
        """Whether it is more than a lone evaluation."""
        return self._plan.mode == "train"

    def drive(self, publisher: Publisher) -> None:
        """The whole run, from its first event to its last."""
        while self._moment is not None:
            if isinstance(self._moment, Fire):
                publisher.publish(self._drafts())
            else:
                self._moment = self._next(self._meet(self._moment))

    def end(self) -> None:
        """Hand back what was read and not trained on."""
        if self._batch is not None:
            self._sources[self._mode].give_back([self._batch])
        for source in self._sources.values():
            source.end()

    def _drafts(self) -> Drafts:
        """The events up to the next thing that only the program can do."""
        while isinstance(self._moment, Fire):
            fire = self._moment
            changes = fire.changes | self._changes(fire.hook)
            decision = yield Draft(fire.hook, changes, fire.drop + self._drop(fire.hook))
            self._heed(fire.hook, decision)
            self._moment = self._next(decision)

    def _next(self, answer: Any) -> Fire | Need | None:
        try:
            return self._moments.send(answer)
        except StopIteration:
            return None

    def _changes(self, hook: Hook) -> dict[str, Any]:
        """What the run itself puts into `cb_params` for an event, beside the counters."""
        self._mode = hook.mode or self._mode
        match hook:
            case Hook.TRAIN_EPOCH_BEGIN | Hook.EVAL_EPOCH_BEGIN:
                self._opening = True
            case Hook.TRAIN_STEP_BEGIN | Hook.EVAL_STEP_BEGIN:
                assert self._batch is not None
                return {f"{self._mode}_dataset_element": live_batch(self._batch)}
            case Hook.TRAIN_STEP_END:
                outputs = {"net_outputs": self._outputs["train"]}
                return outputs | self.traced.values | self.handles.at(self.state)
            case Hook.EVAL_STEP_END:
                return {"net_outputs": self._outputs["eval"]}
            case Hook.EVAL_END:
                return self._results()
            case Hook.TRAIN_EPOCH_END:
                self._close_epoch()
                return {"net_outputs": self._outputs["train"]} if "train" in self._outputs else {}
        return {}

    def _drop(self, hook: Hook) -> tuple[str, ...]:
        """A validation's outputs do not outlast it, even where no training step has given any."""
        leave = hook is Hook.TRAIN_EPOCH_END and "train" not in self._outputs
        return ("net_outputs",) if leave else ()

    def _heed(self, hook: Hook, decision: Decision) -> None:
        """An event was committed: note how far the run is, apply what was patched."""
        if hook is Hook.TRAIN_EPOCH_BEGIN:
            self.epoch = (self.epoch or self._plan.initial_epoch) + 1
        elif hook is Hook.TRAIN_STEP_END:
            self.step += 1
            self.committed = self.state
        if hook in (Hook.TRAIN_STEP_END, Hook.EVAL_STEP_END):
            self._batch = None
        if self.traced.heed(decision, self.ledger):
            self.state = self.committed = self.traced.applied(self.state)

    def _meet(self, need: Need) -> bool | None:
        """What the lifecycle asks for."""
        if need is Need.BATCH:
            return self._take()
        if need is Need.STEP and self._mode == "train":
            self._train()
        elif need is Need.STEP:
            self._evaluate()
        return None

    def _take(self) -> bool:
        source = self._sources[self._mode]
        if self._opening:
            self._opening = False
            source.begin_epoch()
            if self._mode == "train":
                self._losses = []
            else:
                self._evaluation = self._program.init_evaluation()
        if not source.more():
            return False
        self._batch = source.take()
        return True

    def _train(self) -> None:
        """A block of one step; it waits for the outputs."""
        assert self._batch is not None
        self.state, (outputs,) = self._program.run(self.state, [self._batch], 1)
        net_outputs = shown(outputs.net_outputs)
        self._outputs["train"] = live_outputs(net_outputs)
        self.traced.follow(outputs.hyperparams)
        loss = net_outputs[0] if isinstance(net_outputs, tuple) else net_outputs
        self._losses.append(float(loss))
        self._stats.blocks += 1
        self._stats.steps += 1

    def _evaluate(self) -> None:
        assert self._batch is not None
        labels = self._batch[-1]
        mean, loss, outputs, self._evaluation = self._program.evaluate(
            self.state.network, self._batch, self._evaluation
        )
        if self._program.metrics.on_host:
            self._program.metrics.update_host(*jax.tree.map(np.asarray, (loss, outputs, labels)))
        self._outputs["eval"] = live_outputs((shown(mean), *shown((outputs, labels), 0)))
        self._stats.eval_steps += 1

    def _results(self) -> dict[str, Any]:
        """Metrics of an evaluation; none where a stop came before its first batch."""
        metrics: dict[str, Any] = {}
        self.metrics = metrics
        if self._evaluation is not None:
            metrics, eval_loss = self._program.results(self._evaluation)
            self.metrics, self._evaluation = {**metrics, "eval_loss": eval_loss}, None
        if self._plan.mode == "eval":
            self.metrics = metrics
            return {"metrics": metrics}
        return {"metrics": metrics, "eval_results": self.metrics}

    def _close_epoch(self) -> None:
        record: dict[str, Any] = {"epoch": self.epoch}
        if self._losses:
            record["loss"] = float(np.mean(self._losses))
        if self._plan.validates(self.epoch):
            record.update(self.metrics)
        self.history.append(record)
