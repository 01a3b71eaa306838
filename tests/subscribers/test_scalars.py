"""The single numbers of an event."""

import msgspec
import numpy as np
import pytest

from railbus.schemas.codec import pack
from railbus.schemas.events import Committed, Decision, Event
from railbus.schemas.hooks import Hook
from railbus.subscribers.scalars import numbers_of, results_of

HOOK = Hook.TRAIN_STEP_END
EVENT = Event(run_id="run", incarnation=0, seq=0, hook=HOOK, time_ns=0, wall_ns=0, snapshot=b"")
DECISION = Decision(run_id="run", seq=0, hook=HOOK)


def numbers(hook=Hook.TRAIN_STEP_END, **cb_params):
    event = msgspec.structs.replace(EVENT, hook=hook, snapshot=pack(cb_params))
    return numbers_of(Committed(event, DECISION), event.cb_params)


def test_the_loss_is_that_of_a_step_and_an_own_key_of_its_name_is_told_apart():
    found = numbers(net_outputs=[np.float32(0.5), np.zeros(3)], loss=2)

    assert found == {"loss": 0.5, "cb_params.loss": 2}


def test_an_event_that_ends_no_step_has_no_loss():
    assert numbers(Hook.TRAIN_EPOCH_END, net_outputs=np.float32(0.5)) == {}


def test_counters_texts_lists_and_larger_arrays_are_left_out():
    found = numbers(
        cur_step_num=3,
        note="text",
        many=[1, 2],
        array=np.zeros(2),
        one=np.ones((1, 1), np.int16),
        flag=True,
        nested={"a": {"b": 1.5}},
    )

    assert found == {"one": 1, "flag": 1, "nested.a.b": 1.5}


@pytest.mark.parametrize("results", [None, 3, [1.0], {"name": "text"}])
def test_results_that_hold_no_numbers_give_none(results):
    assert (
        results_of(msgspec.structs.replace(EVENT, snapshot=pack({"metrics": results})).cb_params)
        == {}
    )


def test_results_are_those_with_the_loss_where_there_are_both():
    snapshot = pack({"metrics": {"mse": 1.0}, "eval_results": {"mse": 1.0, "eval_loss": 2.0}})

    found = results_of(msgspec.structs.replace(EVENT, snapshot=snapshot).cb_params)

    assert found == {"mse": 1.0, "eval_loss": 2.0}
