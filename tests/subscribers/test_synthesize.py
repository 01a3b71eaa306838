"""`synthesize`: a run made from numbers."""

import numpy as np
import pytest

from railbus.schemas import Committed
from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.lifecycle import verify
from railbus.subscribers import EarlyStopping, LossMonitor, TimeMonitor, replay, synthesize


def test_a_synthetic_run_follows_the_lifecycle():
    made = synthesize(3, 2, [3.0, 2.0, 1.0], {"accuracy": [0.1, 0.2, 0.3]}, 4, 2, 0.5)

    entries = [entry for entry in made if isinstance(entry, Committed)]
    verify(made.about.plan, entries)
    hooks = [entry.event.hook.value for entry in entries]
    assert hooks.count("on_train_step_end") == 6
    assert hooks.count("on_eval_step_end") == 4
    assert hooks[-1] == "on_train_end"


def test_losses_are_one_per_step_or_one_per_epoch():
    by_step = replay(synthesize(2, 2, [4.0, 3.0, 2.0, 1.0]), LossMonitor())
    by_epoch = replay(synthesize(2, 2, [4.0, 3.0]), LossMonitor())

    assert [line.rsplit(" ", 1)[1] for line in by_step.lines] == ["4.0", "3.0", "2.0", "1.0"]
    assert [line.rsplit(" ", 1)[1] for line in by_epoch.lines] == ["4.0", "4.0", "3.0", "3.0"]


def test_metrics_stop_a_run_without_a_recording():
    made = synthesize(5, 1, [1.0] * 5, {"eval_loss": [3.0, 2.0, 2.0, 2.0, 2.0]})

    replayed = replay(made, EarlyStopping(patience=2))

    assert replayed.error is None
    assert replayed.stop is not None
    assert replayed.stop.reason.startswith("epoch 4: eval_loss has not improved")


def test_only_steps_take_time():
    replayed = replay(synthesize(1, 10, [1.0], seconds_per_step=0.25), TimeMonitor())

    assert replayed.lines == ("Train epoch time: 2500.000 ms, per step time: 250.000 ms",)


def test_the_learning_rate_is_there_to_be_set():
    made = synthesize(1, 1, [1.0], learning_rate=0.5)

    rates = [entry.event.cb_params.learning_rate for entry in made if isinstance(entry, Committed)]
    assert set(rates) == {np.float32(0.5)}


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ({"losses": [1.0, 2.0, 3.0]}, ArgumentError),
        ({"metrics": {"accuracy": [1.0]}}, ArgumentError),
        ({"valid_batches": 3}, ArgumentError),
        ({"epochs": 0}, ArgumentError),
        ({"metrics": {"accuracy": [1.0, 2.0]}, "valid_batches": 0}, ArgumentError),
        ({"batches": 2.0}, ArgumentTypeError),
        ({"seconds_per_step": 0}, ArgumentError),
        ({"metrics": {"accuracy": [1.0, 2.0]}, "valid_frequency": 0}, ArgumentError),
    ],
)
def test_numbers_that_make_no_run_are_refused(numbers, wrong):
    with pytest.raises(wrong):
        synthesize(**{"epochs": 2, "batches": 2, "losses": [1.0, 2.0], **numbers})
