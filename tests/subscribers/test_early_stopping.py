"""`EarlyStopping`, and the defects of MindSpore's and its peers' that it does not have."""

import math

import numpy as np
import pytest

from railbus.subscribers import Callback, EarlyStopping
from railbus.trainer import RunAhead

from .scripted import DATA, Scripted, carried, fit, make_trainer


class Kernels(Callback):
    """The kernel after each epoch."""

    def on_train_begin(self, run_context):
        self.seen = []

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args().train_network.params
        self.seen.append(np.array(params["kernel"]))


def test_it_stops_when_the_patience_is_at_its_end_and_says_why(capsys):
    stopping = EarlyStopping("accuracy", patience=2, verbose=True)

    result = fit(stopping, [0.5, 0.75, 0.7, 0.75, 0.9])

    assert (result.status, result.epoch) == ("stopped", 4)
    reason = "epoch 4: accuracy has not improved in 2 checks, best is 0.75 at epoch 2"
    assert (result.reason, result.by) == (reason, "EarlyStopping")
    assert capsys.readouterr().out == "Epoch 00004: early stopping\n"


def test_patience_0_goes_on_while_it_improves_where_mindspores_stops_after_one_epoch():
    assert fit(EarlyStopping("accuracy"), [0.1, 0.2, 0.3]).status == "completed"
    assert fit(EarlyStopping("accuracy"), [0.1, 0.2, 0.2, 0.3]).epoch == 3


def test_the_baseline_itself_counts_where_mindspore_puts_min_delta_in_its_place():
    stopping = EarlyStopping("accuracy", min_delta=0.01, patience=3, baseline=0.5)

    result = fit(stopping, [0.1, 0.2, 0.3, 0.4])

    assert result.epoch == 3
    assert result.reason == (
        "epoch 3: accuracy has not improved beyond the baseline 0.5 in 3 checks, "
        "best is 0.3 at epoch 3"
    )
    assert fit(stopping, [0.1, 0.6, 0.7, 0.8, 0.9]).status == "completed"


def test_a_value_of_0_counts_where_mindspores_takes_it_for_missing():
    assert fit(EarlyStopping("accuracy", patience=2), [0.0, 0.0, 0.0, 0.5]).epoch == 3
    assert fit(EarlyStopping("mse"), [0.0, 0.1, 0.1], "mse").epoch == 2


def test_nan_is_no_improvement_and_never_the_best():
    stopping = EarlyStopping("accuracy", patience=2)

    assert fit(stopping, [math.nan, math.nan, 0.5]).epoch == 2
    assert stopping.best is None
    assert fit(stopping, [0.5, math.nan, 0.6, math.nan, math.nan]).epoch == 5


def test_min_delta_is_the_least_improvement():
    assert fit(EarlyStopping("mse", min_delta=0.25), [1.0, 0.5, 0.25, 0.1], "mse").epoch == 3


def test_the_training_loss_needs_no_validation():
    result = make_trainer().train(9, DATA, EarlyStopping("loss", min_delta=1e9))

    assert result.epoch == 2


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("patience", [2, 9])
def test_the_best_weights_come_back_whether_or_not_it_stopped_the_run(exact, patience, capsys):
    """MindSpore's gives them back only where it stopped."""
    stopping = EarlyStopping("mse", patience=patience, verbose=True, restore_best_weights=True)
    kernels, trainer = (
        Kernels(),
        make_trainer({"mse": Scripted([3, 2, 4, 5])}, RunAhead(exact=exact)),
    )

    trainer.fit(4, DATA, DATA, callbacks=[kernels, stopping])

    assert np.array_equal(trainer.network.kernel[...], kernels.seen[1])
    assert not np.array_equal(kernels.seen[1], kernels.seen[3])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Restoring model weights from the end of the best epoch."


def test_weights_that_are_the_best_are_not_given_back(capsys):
    trainer = make_trainer({"mse": Scripted([3, 2])})

    trainer.fit(2, DATA, DATA, callbacks=EarlyStopping(verbose=True, restore_best_weights=True))

    assert capsys.readouterr().out == ""


def test_a_second_run_starts_anew_where_kerass_kept_a_stale_best():
    stopping = EarlyStopping("accuracy", patience=2)
    fit(stopping, [0.9, 0.8, 0.7])

    assert fit(stopping, [0.1, 0.2, 0.3]).status == "completed"
    assert stopping.stopped_epoch == 0


def test_the_patience_and_best_weights_outlast_a_resume_where_peers_lose_them():
    """Keras (#14862), transformers (#28544) and Composer begin the patience anew."""

    class Resumes(EarlyStopping):
        def on_train_begin(self, run_context):
            super().on_train_begin(run_context)
            self.load_state_dict(state)

    first = EarlyStopping("mse", patience=3, restore_best_weights=True)
    kernels = Kernels()
    fit([kernels, first], [1, 2, 3], "mse")
    state = carried(first.state_dict())
    second = Resumes("mse", patience=3, restore_best_weights=True)
    trainer = make_trainer({"mse": Scripted([2, 2])})
    result = trainer.fit(5, DATA, DATA, callbacks=second, initial_epoch=3)

    assert (state["wait"], state["best"], state["best_epoch"]) == (2, 1.0, 1)
    assert result.epoch == 4
    assert np.array_equal(trainer.network.kernel[...], kernels.seen[0])


def test_a_state_of_another_network_is_refused():
    class Resumes(EarlyStopping):
        def on_train_begin(self, run_context):
            super().on_train_begin(run_context)
            weights = {"kernel": np.zeros((3, 1), np.float32)}
            state = {"wait": 0, "stopped_epoch": 0, "best": 1.0, "best_epoch": 1}
            self.load_state_dict(state | {"weights": weights})

    with pytest.raises(ValueError, match="that of another network"):
        fit(Resumes("mse", restore_best_weights=True), [1.0], "mse")


def test_a_lone_eval_leaves_it_alone():
    assert "mse" in make_trainer().eval(DATA, EarlyStopping())


@pytest.mark.parametrize(
    "arguments",
    [
        {"monitor": 1},
        {"monitor": " "},
        {"min_delta": "0"},
        {"min_delta": math.nan},
        {"patience": -1},
        {"patience": 1.0},
        {"verbose": 1},
        {"mode": "down"},
        {"baseline": "0.5"},
        {"restore_best_weights": None},
        {"unknown": 1},
    ],
)
def test_constructors_refuse_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        EarlyStopping(**arguments)
