"""The sequence of a run: which hook follows which, and what a stop does to it (C3, C4).

`lifecycle(plan)` is one generator, free of JAX, I/O and clocks. It yields either

- `Fire(hook, changes, drop)`, the next event, and is sent the event's `Decision`, or
- a `Need` that only its driver can meet, and is sent the answer.

Its driver is the trainer, a synthetic stream, or `verify`, which checks a recorded one.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from .errors import RailbusError
from .events import Committed, Decision, StopRequest
from .hooks import Hook, Mode


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an interrupted run is gone on with.

    Attributes:
        step: training steps that are done.
        epoch: the one that the last of them belongs to.
        batches: how many of its batches are done; None where the whole epoch is over, its
            validation and `on_train_epoch_end` included.
        stop: what a callback had ended the run with: only what closes the run is left.
    """

    step: int
    epoch: int
    batches: int | None
    stop: StopRequest | None = None

    @property
    def initial_epoch(self) -> int:
        """The last epoch that is over."""
        return self.epoch if self.batches is None else self.epoch - 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a run, known before it begins.

    `epochs` is the number of the last epoch; the first is `initial_epoch + 1`. `batch_num` and
    `valid_batch_num` are batches per epoch, None where the dataset does not tell.
    `valid_frequency` validates every n epochs or at the epochs listed; None never does. A run that
    is not `exact` cannot leave out training steps that the device has begun: a stop ends it there.

    A run that is `resumed` begins with `on_train_begin` and, inside of an epoch, that epoch's
    `on_train_epoch_begin`, for which callbacks set themselves up; then everything is put where the
    interrupted run had it (`Need.RESUME`), and the next event is the one that would have followed.
    """

    mode: Mode
    epochs: int = 1
    initial_epoch: int = 0
    batch_num: int | None = None
    valid_batch_num: int | None = None
    valid_frequency: int | tuple[int, ...] | None = None
    exact: bool = True
    resumed: Place | None = None

    def validates(self, epoch: int) -> bool:
        """Whether the validation of `fit` is due at the end of `epoch`."""
        if isinstance(self.valid_frequency, int):
            return epoch % self.valid_frequency == 0
        return epoch in (self.valid_frequency or ())

    def passes(self) -> Iterator[Mode]:
        """Its ways through data, one after another, if nobody stops it."""
        if self.mode == "eval":
            yield "eval"
            return
        for epoch in range(self.initial_epoch + 1, self.epochs + 1):
            yield "train"
            if self.validates(epoch):
                yield "eval"

    def ends_with(self, hook: Hook) -> bool:
        """Whether `hook` is the terminal event of such a run (C4)."""
        return hook in (Hook.TRAIN_END if self.mode == "train" else Hook.EVAL_END, Hook.EXCEPTION)


class Fire(NamedTuple):
    """The next event: `changes` go into `cb_params` before it, the keys in `drop` leave it."""

    hook: Hook
    changes: dict[str, Any]
    drop: tuple[str, ...] = ()


class Need(Enum):
    """What the driver is asked for, in the mode of the last event."""

    BATCH = "is there another batch in this epoch?"
    BOUND = "a stop was asked: is there a step that cannot be left out any more?"
    STEP = "compute the step of the batch"
    RESUME = "put everything where the interrupted run had it"
    METRICS = "compute the metrics of this evaluation"


Moments: TypeAlias = Generator[Fire | Need, Any, None]
RESULTS = ("metrics", "eval_results")
# What begins no more once a stop was asked for, by whose stop (C3).
UNITS: Mapping[Hook, Mode] = {
    Hook.TRAIN_EPOCH_BEGIN: "train",
    Hook.TRAIN_STEP_BEGIN: "train",
    Hook.EVAL_STEP_BEGIN: "eval",
}


def lifecycle(plan: Plan) -> Moments:
    """The run that `plan` describes, as events and needs (DESIGN section 3)."""
    stops = _Stops()
    if plan.mode == "train":
        yield from _training(plan, stops)
    else:
        yield from _evaluation(plan, stops, alone=True)


def ending(stop: StopRequest | None) -> dict[str, Any]:
    """What a terminal event says about how its run ended."""
    if stop is None:
        return {"status": "completed"}
    return {
        "status": "stopped",
        "stop_reason": stop.reason,
        "stop_by": stop.by,
        "stop_at": stop.at,
    }


class _Stops:
    """The first stop heard in training, and in the evaluation under way."""

    def __init__(self) -> None:
        self.train: StopRequest | None = None
        self.eval: StopRequest | None = None

    def hear(self, decision: Decision) -> None:
        if not decision.stops:
            return
        self.train = self.train or decision.stop("train")
        self.eval = self.eval or decision.stop("eval")

    def asked(self, mode: Mode) -> bool:
        return (self.train if mode == "train" else self.eval) is not None


def _training(plan: Plan, stops: _Stops) -> Moments:
    place = plan.resumed or Place(step=0, epoch=plan.initial_epoch, batches=None)
    step, done, batch_num = place.step, place.batches or 0, plan.batch_num
    resuming = plan.resumed is not None
    drop: tuple[str, ...] = ()
    counters = {"mode": "train", "cur_step_num": step, "cur_batch_num": 0, "batch_num": batch_num}
    if resuming:
        counters |= {"resumed_step": step, "resumed_epoch": place.initial_epoch}
    stops.hear((yield Fire(Hook.TRAIN_BEGIN, counters)))
    if resuming and (place.batches is None or stops.asked("train")):
        yield from _resume(place, stops)
    for epoch in range(plan.initial_epoch + 1, plan.epochs + 1):
        if stops.asked("train"):
            break
        begin = {"cur_epoch_num": epoch, "cur_batch_num": done}
        stops.hear((yield Fire(Hook.TRAIN_EPOCH_BEGIN, begin, drop)))
        if resuming and place.batches is not None and epoch == place.epoch:
            yield from _resume(place, stops)
        batches = yield from _steps(Hook.TRAIN_STEP_BEGIN, step - done, done, stops, plan.exact)
        step, done = step + batches - done, 0
        if batch_num is None and not stops.asked("train"):
            batch_num = batches
        if plan.validates(epoch):
            yield from _evaluation(plan, stops, alone=False)
        back = {"mode": "train", "cur_step_num": step, "cur_batch_num": batches}
        stops.hear((yield Fire(Hook.TRAIN_EPOCH_END, back | {"batch_num": batch_num})))
        drop = RESULTS if plan.validates(epoch) else ()
    yield Fire(Hook.TRAIN_END, ending(stops.train), drop)


def _resume(place: Place, stops: _Stops) -> Moments:
    yield Need.RESUME
    stops.train = place.stop or stops.train


def _evaluation(plan: Plan, stops: _Stops, *, alone: bool) -> Moments:
    stops.eval = None
    counters = {"mode": "eval", "cur_step_num": 0, "cur_batch_num": 0}
    stops.hear((yield Fire(Hook.EVAL_BEGIN, counters | {"batch_num": plan.valid_batch_num})))
    stops.hear((yield Fire(Hook.EVAL_EPOCH_BEGIN, {})))
    yield from _steps(Hook.EVAL_STEP_BEGIN, 0, 0, stops, True)
    stops.hear((yield Fire(Hook.EVAL_EPOCH_END, {})))
    yield Need.METRICS
    stops.hear((yield Fire(Hook.EVAL_END, ending(stops.eval) if alone else {})))


def _steps(
    begin: Hook, before: int, done: int, stops: _Stops, exact: bool
) -> Generator[Fire | Need, Any, int]:
    """The steps of one epoch after those `done`, numbered on from `before`; returns their count."""
    count = done
    mode: Mode = "train" if begin is Hook.TRAIN_STEP_BEGIN else "eval"
    end = Hook.TRAIN_STEP_END if mode == "train" else Hook.EVAL_STEP_END
    while True:
        asked = stops.asked(mode)
        if (asked and exact) or not (yield Need.BOUND if asked else Need.BATCH):
            return count
        count += 1
        stops.hear((yield Fire(begin, {"cur_step_num": before + count, "cur_batch_num": count})))
        yield Need.STEP
        stops.hear((yield Fire(end, {})))


class SequenceError(RailbusError, ValueError):
    """Raised when a stream of committed events is not one that its plan allows."""


def verify(plan: Plan, log: Iterable[Committed], whole: bool = True) -> None:
    """Check a committed stream against the lifecycle, decisions and counters included.

    Args:
        whole: it has to reach the terminal event; otherwise it may break off anywhere.

    Raises:
        SequenceError: naming the first event that is out of place, and what was expected.
    """
    moments = lifecycle(plan)
    upcoming = iter(log)
    entry = next(upcoming, None)
    answer: Any = None
    seq = 0
    while (moment := _advance(moments, answer)) is not None:
        if entry is not None and entry.event.hook is Hook.EXCEPTION:
            moments.close()
            moment = Fire(Hook.EXCEPTION, {"status": "failed"})
        if isinstance(moment, Need):
            answer = entry is not None and entry.event.hook.is_step
            continue
        if entry is None and not whole:
            return
        answer = _expect(moment, entry, seq)
        entry, seq = next(upcoming, None), seq + 1
    if entry is not None:
        raise SequenceError(f"expected the end of the stream, got {entry.event}")


def _advance(moments: Moments, answer: Any) -> Fire | Need | None:
    try:
        return moments.send(answer)
    except StopIteration:
        return None


def _expect(moment: Fire, entry: Committed | None, seq: int) -> Decision:
    wanted = f"{moment.hook.value} #{seq}"
    if entry is None:
        raise SequenceError(f"expected {wanted}, got the end of the stream")
    if (entry.event.hook, entry.event.seq) != (moment.hook, seq):
        raise SequenceError(f"expected {wanted}, got {entry.event}")
    shown = entry.event.cb_params
    for key, value in moment.changes.items():
        if shown.get(key) != value:
            raise SequenceError(f"expected {key} = {value!r} at {wanted}, got {shown.get(key)!r}")
    for key in moment.drop:
        if key in shown:
            raise SequenceError(f"expected {key} to be gone at {wanted}, got {shown[key]!r}")
    return entry.decision
