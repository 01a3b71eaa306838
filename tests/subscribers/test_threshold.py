"""`Threshold`: bounds on the loss of a step and on the results of a validation."""

import math

import pytest

from railbus.subscribers import Callback, Threshold

from .scripted import DATA, fit, make_trainer


class Losses(Callback):
    def on_train_begin(self, run_context):
        self.seen = []

    def on_train_step_end(self, run_context):
        self.seen.append(float(run_context.original_args().net_outputs))


def test_the_loss_of_a_step_stops_the_run_at_that_step():
    losses = Losses()
    make_trainer().train(1, DATA, losses)
    bound = (losses.seen[0] + losses.seen[1]) / 2
    falls = losses.seen[1] < losses.seen[0]

    result = make_trainer().train(
        3, DATA, Threshold("loss", below=bound) if falls else Threshold("loss", above=bound)
    )

    side = "below" if falls else "above"
    assert (result.status, result.step) == ("stopped", 2)
    assert result.reason == f"epoch 1 step 2: loss is {losses.seen[1]:g}, {side} {bound:g}"


@pytest.mark.parametrize(
    ("bounds", "epoch", "side"),
    [({"above": 0.5}, 3, "above 0.5"), ({"below": 0.3, "above": 0.9}, 2, "below 0.3")],
)
def test_a_result_beyond_a_bound_stops_the_run_after_that_epoch(bounds, epoch, side):
    values = [0.5, 0.25, 0.75, 1.0]

    result = fit(Threshold("accuracy", **bounds), values)

    assert result.epoch == epoch
    assert result.reason == f"epoch {epoch}: accuracy is {values[epoch - 1]:g}, {side}"


def test_the_bound_itself_and_nan_cross_nothing():
    result = fit(Threshold("accuracy", above=0.5, below=0.5), [0.5, math.nan, 0.5])

    assert result.status == "completed"


def test_a_run_that_never_has_the_value_is_refused():
    with pytest.raises(ValueError, match="needs a validation"):
        make_trainer().train(1, DATA, Threshold("accuracy", above=0.9))
    with pytest.raises(ValueError, match="give 'accuracy', 'eval_loss'"):
        fit(Threshold("accurcy", above=0.9), [0.5])


def test_a_lone_eval_leaves_it_alone():
    assert "mse" in make_trainer().eval(DATA, Threshold("mse", above=-1))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"monitor": "loss"},
        {"monitor": 1, "above": 1},
        {"monitor": "loss", "above": "1"},
        {"monitor": "loss", "below": math.nan},
        {"monitor": "loss", "above": 1, "below": 2},
        {"monitor": "loss", "above": 1, "unknown": 2},
    ],
)
def test_constructors_refuse_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        Threshold(**arguments)
