"""The value that callbacks watch, and what counts as better."""

import math

import pytest

from railbus.subscribers import (
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    ReduceLROnPlateau,
    Threshold,
)
from railbus.subscribers.monitor import Better

from .scripted import DATA, Scripted, fit, make_trainer


@pytest.mark.parametrize(
    ("name", "rises"),
    [
        ("accuracy", True),
        ("top_5_accuracy", True),
        ("f1_score", True),
        ("AUC", True),
        ("dice", True),
        ("eval_loss", False),
        ("dice_loss", False),
        ("mean_surface_distance", False),
        ("perplexity", False),
    ],
)
def test_auto_takes_the_direction_from_the_usual_names(name, rises):
    assert Better(name)(1.0, 0.0) is rises
    assert Better(name)(0.0, 1.0) is not rises


def test_auto_refuses_a_name_it_does_not_know_where_mindspore_takes_max():
    with pytest.raises(ValueError, match="'energy' should rise or fall; pass mode='min'"):
        EarlyStopping("energy")
    EarlyStopping("energy", mode="min")


def test_an_improvement_is_more_than_min_delta_and_nan_is_none():
    better = Better("loss", "min", -0.5)

    assert better(0.4, 1.0) and not better(0.5, 1.0)
    assert better(7.0, None) and not better(math.nan, None)


@pytest.mark.parametrize(
    "make",
    [
        EarlyStopping,
        ReduceLROnPlateau,
        lambda name: ModelCheckpoint(monitor=name),
        lambda name: Threshold(name, above=1),
    ],
)
def test_a_name_that_validations_will_not_give_is_refused_before_the_first_step(make):
    steps = []
    looks = LambdaCallback(on_train_step_begin=steps.append)

    with pytest.raises(
        ValueError, match="'val_accuracy' is no .* give 'accuracy', 'eval_loss'; .* mean 'accuracy'"
    ):
        fit([looks, make("val_accuracy")], [0.5])
    assert steps == []


def test_a_result_that_is_no_single_number_is_an_error():
    with pytest.raises(ValueError, match="'dice' must be one number, got dict"):
        fit(EarlyStopping("dice"), [{"mean": 1.0}], "dice")


def test_a_run_without_validation_is_refused_before_its_first_step_where_mindspore_warns():
    trainer = make_trainer()
    before = float(trainer.network.kernel[...][0, 0])

    with pytest.raises(ValueError, match="needs a validation, and this run has none"):
        trainer.train(2, DATA, EarlyStopping())
    assert float(trainer.network.kernel[...][0, 0]) == before


def test_epochs_without_a_validation_do_not_count():
    stopping = EarlyStopping("accuracy", patience=2)
    trainer = make_trainer({"accuracy": Scripted([0.5, 0.4, 0.3])})

    result = trainer.fit(9, DATA, DATA, 3, stopping)

    assert (result.epoch, stopping.best_epoch) == (9, 3)


def test_the_names_are_known_before_there_is_a_result():
    names, results = [], []
    keeps = LambdaCallback(
        on_train_begin=lambda run: names.append(run.original_args().metric_names),
        on_train_epoch_end=lambda run: results.append(list(run.original_args().eval_results)),
        on_eval_begin=lambda run: names.append(run.original_args().metric_names),
        on_eval_end=lambda run: results.append(list(run.original_args().metrics)),
    )
    fit(keeps, [0.5])
    make_trainer({"mse", "loss"}).eval(DATA, keeps)

    fits, alone = ["accuracy", "eval_loss"], ["loss", "mse"]
    assert names == [fits, fits, alone]
    assert results == [["accuracy"], fits, alone]


def test_a_run_without_validation_has_no_names():
    kept = []
    keeps = LambdaCallback(on_train_begin=lambda run: kept.append(dict(run.original_args())))
    make_trainer().train(1, DATA, keeps)

    assert "metric_names" not in kept[0]
