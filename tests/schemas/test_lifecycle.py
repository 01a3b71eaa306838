"""`verify` takes what the lifecycle makes, and nothing else."""

import contextlib
from typing import Any

import msgspec
import pytest

from railbus.schemas import Decision, Event, Fire, Hook, Need, Plan, StopRequest, lifecycle, pack
from railbus.schemas.events import Committed
from railbus.schemas.lifecycle import SequenceError, verify

PLAN = Plan(mode="train", epochs=2, batch_num=2, valid_batch_num=1, valid_frequency=1)


def stream(stop_at: int | None = None) -> list[Committed]:
    """A synthetic run of `PLAN`, with a stop in the decision of event `stop_at`."""
    log, params, moments = [], {}, lifecycle(PLAN)
    batches, moment = 0, next(moments)
    while True:
        answer: Any = None
        if isinstance(moment, Fire):
            batches = 0 if "epoch_begin" in moment.hook else batches
            params.update(moment.changes)
            for key in moment.drop:
                params.pop(key, None)
            if moment.hook is Hook.EVAL_END:
                params["metrics"] = {}
            seq = len(log)
            stop = StopRequest(by="a", at=seq, reason="r", scope="train")
            answer = Decision(
                run_id="run", seq=seq, hook=moment.hook, stops=(stop,) if seq == stop_at else ()
            )
            event = Event(
                run_id="run", incarnation=0, seq=seq, hook=moment.hook, time_ns=0, wall_ns=0,
                snapshot=pack(params),
            )  # fmt: skip
            log.append(Committed(event, answer))
        elif moment is Need.BATCH:
            batches += 1
            answer = batches <= (1 if params["mode"] == "eval" else 2)
        try:
            moment = moments.send(answer)
        except StopIteration:
            return log


@pytest.mark.parametrize("stop_at", [None, *range(29)])
def test_every_generated_stream_is_accepted(stop_at):
    verify(PLAN, stream(stop_at))


@pytest.mark.parametrize("frequency", [None, 1, 2, (3,)])
def test_the_passes_are_the_epoch_begins_of_a_run_that_nobody_stops(frequency):
    plan = Plan(mode="train", epochs=4, initial_epoch=1, batch_num=2, valid_frequency=frequency)
    hooks, moments = [], lifecycle(plan)
    moment, batches = next(moments), 0
    with contextlib.suppress(StopIteration):
        while True:
            answer: Any = None
            if isinstance(moment, Fire):
                hooks.append(moment.hook)
                answer = Decision(run_id="run", seq=0, hook=moment.hook)
            elif moment is Need.BATCH:
                batches += 1
                answer = batches % 2 == 0
            moment = moments.send(answer)

    begins = [hook.mode for hook in hooks if "epoch_begin" in hook]
    assert begins == list(plan.passes())
    assert list(Plan(mode="eval").passes()) == ["eval"]


def test_a_run_that_is_not_exact_ends_where_nothing_is_bound_any_more():
    moments = lifecycle(Plan(mode="train", batch_num=9, exact=False))
    moment, steps, asked = next(moments), 0, []
    with contextlib.suppress(StopIteration):
        while True:
            answer: Any = None
            if isinstance(moment, Fire):
                steps += moment.hook is Hook.TRAIN_STEP_END
                stop = StopRequest(by="a", at=0, reason="r", scope="train")
                stops = (stop,) if steps == 2 else ()
                answer = Decision(run_id="run", seq=0, hook=moment.hook, stops=stops)
            elif moment in (Need.BATCH, Need.BOUND):
                asked.append(moment)
                answer = steps < 5
            moment = moments.send(answer)

    assert asked == [Need.BATCH] * 2 + [Need.BOUND] * 4
    assert steps == 5


@pytest.mark.parametrize("at", range(len(stream())))
def test_a_stream_with_an_event_missing_or_twice_is_refused(at):
    log = stream()

    with pytest.raises(SequenceError):
        verify(PLAN, log[:at] + log[at + 1 :])
    with pytest.raises(SequenceError):
        verify(PLAN, [*log[: at + 1], *log[at:]])


def test_a_stop_that_was_not_heeded_is_refused():
    log = stream()
    stop = StopRequest(by="a", at=3, reason="r", scope="train")
    decision = msgspec.structs.replace(log[3].decision, stops=(stop,))

    with pytest.raises(SequenceError):
        verify(PLAN, [*log[:3], Committed(log[3].event, decision), *log[4:]])


def test_results_that_outlive_their_epoch_are_refused():
    log = stream()
    at = next(k for k in range(10, 29) if log[k].event.hook is Hook.TRAIN_EPOCH_BEGIN)
    params = dict(log[at].event.cb_params) | {"metrics": {}}
    event = msgspec.structs.replace(log[at].event, snapshot=pack(params))

    with pytest.raises(SequenceError, match="metrics to be gone"):
        verify(PLAN, [*log[:at], Committed(event, log[at].decision), *log[at + 1 :]])
