"""`StopAtStep`: at a step, at an epoch, at whichever comes first."""

import pytest

from railbus.subscribers import StopAtStep

from .scripted import DATA, make_trainer


@pytest.mark.parametrize(
    ("bounds", "step", "reason"),
    [
        ({"step": 1}, 1, "step 1 has ended"),
        ({"step": 6}, 6, "step 6 has ended"),
        ({"epoch": 2}, 8, "epoch 2 has ended"),
        ({"step": 6, "epoch": 1}, 4, "epoch 1 has ended"),
        ({"step": 3, "epoch": 1}, 3, "step 3 has ended"),
    ],
)
def test_it_stops_exactly_there(bounds, step, reason):
    result = make_trainer().train(5, DATA, StopAtStep(**bounds))

    assert (result.step, result.reason, result.by) == (step, reason, "StopAtStep")


def test_a_run_that_begins_after_the_epoch_stops_after_its_first_one():
    assert make_trainer().train(9, DATA, StopAtStep(epoch=2), initial_epoch=4).epoch == 5


def test_a_validation_is_not_counted():
    assert make_trainer().fit(3, DATA, DATA, callbacks=StopAtStep(step=6)).step == 6


def test_a_lone_eval_leaves_it_alone():
    assert "mse" in make_trainer().eval(DATA, StopAtStep(step=1))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"step": 0}, {"step": True}, {"step": 1.0}, {"epoch": "1"}, {"step": 1, "unknown": 1}],
)
def test_constructors_refuse_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        StopAtStep(**arguments)
