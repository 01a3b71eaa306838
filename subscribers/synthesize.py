"""`synthesize`: a run's events made from numbers, for tests of callbacks that have no recording."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from railbus.bus.about import About
from railbus.bus.stream import Events
from railbus.schemas.codec import Reference
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed, Decision, Event
from railbus.schemas.hooks import Hook
from railbus.schemas.lifecycle import Fire, Need, Plan, lifecycle, verify
from railbus.schemas.params import Ledger
from railbus.schemas.tensor import Tensor

from .checks import count, positive

LASTING = frozenset({Hook.TRAIN_STEP_END, Hook.EVAL_STEP_END})  # events that take time


def synthesize(
    epochs: int,
    batches: int,
    losses: Sequence[float],
    metrics: Mapping[str, Sequence[Any]] | None = None,
    valid_batches: int | None = None,
    valid_frequency: int | None = None,
    learning_rate: float | None = None,
    seconds_per_step: float = 0.1,
    run_id: str = "synthetic",
) -> Events:
    """A completed run of these numbers, without callbacks, as a trainer would have published it.

    Args:
        epochs: how many; `batches` is the steps of each.
        losses: of each step, or one for all steps of each epoch; float32 in `net_outputs`.
        metrics: by name a value for each epoch; `eval_loss` among them is in `eval_results` only.
            None makes a run without validation.
        valid_batches: steps of a validation, default 1; their `net_outputs` have the epoch's
            `eval_loss`, or 0.
        valid_frequency: validates every n epochs, default 1.
        learning_rate: an injected one, which callbacks may set; None has none.
        seconds_per_step: what each step takes on the run's clock; nothing else takes time.

    Raises:
        ArgumentTypeError, ArgumentError: numbers that make no run, or too few of them.
    """
    if metrics is None and (valid_batches is not None or valid_frequency is not None):
        raise ArgumentError("a validation needs metrics, for example metrics={'accuracy': [0.5]}")
    plan = Plan(
        mode="train",
        epochs=count("epochs", epochs, 1),
        batch_num=count("batches", batches, 1),
        valid_batch_num=_number("valid_batches", valid_batches, metrics),
        valid_frequency=_number("valid_frequency", valid_frequency, metrics),
    )
    step_ns = round(positive("seconds_per_step", seconds_per_step) * 1e9)
    made = _Made(plan, run_id, _per_step(losses, epochs, batches), _checked(metrics, epochs))
    facts = _facts(plan, run_id, learning_rate)
    if metrics is not None:
        facts["metric_names"] = [*(name for name in metrics if name != "eval_loss"), "eval_loss"]
    made.ledger.publish(facts)
    entries = tuple(made.entries(step_ns))
    verify(plan, entries)
    return Events(About(run_id=run_id, incarnation=0, plan=plan), entries)


class _Made:
    """One run on its way through the lifecycle."""

    def __init__(
        self, plan: Plan, run_id: str, losses: Any, metrics: Mapping[str, Sequence[Any]]
    ) -> None:
        self.ledger = Ledger()
        self._plan, self._run_id, self._losses, self._metrics = plan, run_id, losses, metrics
        self._outputs: Any = None

    def entries(self, step_ns: int) -> Iterator[Committed]:
        """Its committed events; a step ends `step_ns` after it began."""
        moments = lifecycle(self._plan)
        seq = now = 0
        answer: Any = None
        with suppress(StopIteration):
            while True:
                moment = moments.send(answer)
                if isinstance(moment, Need):
                    answer = moment is Need.BATCH and self._more()
                    continue
                now += step_ns if moment.hook in LASTING else 0
                entry = self._entry(seq, moment, now)
                seq, answer = seq + 1, entry.decision
                yield entry

    def _entry(self, seq: int, fire: Fire, now: int) -> Committed:
        hook, params = fire.hook, self.ledger.params
        begins = hook in (Hook.TRAIN_EPOCH_BEGIN, Hook.TRAIN_END)
        drop = (*fire.drop, "epoch_loss") if begins else fire.drop
        self.ledger.publish({**fire.changes, **self._changes(fire)}, drop)
        event = Event(
            run_id=self._run_id,
            incarnation=0,
            seq=seq,
            hook=hook,
            time_ns=now,
            wall_ns=now,
            snapshot=self.ledger.snapshot(),
        )
        decision = Decision(run_id=self._run_id, seq=seq, hook=hook)
        return Committed(
            event, decision, (), params["cur_step_num"], params.get("cur_epoch_num", 0)
        )

    def _more(self) -> bool:
        params = self.ledger.params
        return bool(params["cur_batch_num"] < params["batch_num"])

    def _changes(self, fire: Fire) -> dict[str, Any]:
        """What a trainer puts into `cb_params` beside the counters."""
        hook = fire.hook
        if hook is Hook.TRAIN_STEP_END:
            self._outputs = _scalar(self._losses[self.ledger.params["cur_step_num"] - 1])
            return {"net_outputs": self._outputs}
        if hook is Hook.EVAL_STEP_END:
            return {"net_outputs": [_scalar(self._results().get("eval_loss", 0.0))]}
        if hook is Hook.EVAL_END:
            found = self._results()
            metrics = {name: value for name, value in found.items() if name != "eval_loss"}
            return {"metrics": metrics, "eval_results": found}
        if hook is Hook.TRAIN_EPOCH_END:
            return {
                "epoch_loss": self._mean(fire.changes["cur_step_num"]),
                "net_outputs": self._outputs,
            }
        return {}

    def _mean(self, last: int) -> float:
        """Of the epoch that ends with step `last`."""
        first = last - (self._plan.batch_num or 0)
        losses = self._losses[first:last]
        return float(np.mean([float(loss) for loss in losses]))

    def _results(self) -> dict[str, Any]:
        epoch = self.ledger.params["cur_epoch_num"]
        return {name: values[epoch - 1] for name, values in self._metrics.items()}


def _number(name: str, given: int | None, metrics: object) -> int | None:
    """A number of a validation, by default 1; None where there is none."""
    if metrics is None:
        return None
    return 1 if given is None else count(name, given, 1)


def _scalar(loss: Any) -> Tensor:
    return Tensor.of(np.asarray(loss, np.float32))


def _per_step(losses: Sequence[float], epochs: int, batches: int) -> Any:
    array = np.asarray(losses, np.float32)
    if array.shape == (epochs * batches,):
        return array
    if array.shape == (epochs,):
        return np.repeat(array, batches)
    raise ArgumentError(
        f"losses must be one for each of {epochs * batches} steps or {epochs} epochs, got an array "
        f"of shape {list(array.shape)}"
    )


def _checked(
    metrics: Mapping[str, Sequence[Any]] | None, epochs: int
) -> Mapping[str, Sequence[Any]]:
    for name, values in (metrics or {}).items():
        if len(values) != epochs:
            raise ArgumentError(
                f"metrics[{name!r}] must have a value for each of {epochs} epochs, got {len(values)}"
            )
    return metrics or {}


def _facts(plan: Plan, run_id: str, learning_rate: float | None) -> dict[str, Any]:
    """What a trainer says of a run before its first event."""
    kinds = ["network", "loss_fn", "train_dataset", "train_network", "optimizer"]
    if plan.valid_frequency is not None:
        kinds += ["valid_dataset", "eval_network"]
    facts: dict[str, Any] = {"parallel_mode": "stand_alone", "device_number": 1}
    facts |= {one: Reference(kind=one, type="synthetic", summary="", id="") for one in kinds}
    facts |= {"epoch_num": plan.epochs}
    if learning_rate is not None:
        facts["learning_rate"] = np.float32(positive("learning_rate", learning_rate))
    return facts | {"run_id": run_id, "dataset_sink_mode": False}
