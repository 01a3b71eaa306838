"""Monitors of a run that is interrupted inside of an epoch go on as if it had not been."""

import re
from typing import Any

import pytest

from railbus.subscribers import (
    Callback,
    DeviceMonitor,
    FlopsUtilizationCollector,
    LearningRateMonitor,
    LossMonitor,
    ProgressBar,
    ThroughputMonitor,
    TimeMonitor,
)

from .scripted import DATA, make_trainer

EPOCHS, CUT = 3, 6  # of 4 steps each: step 2 of epoch 2


class Times(Callback):
    """How long each step took, from the one before or the epoch's begin."""

    def __init__(self, path: Any = None) -> None:
        self.path = path
        self.seconds: dict[int, float] = {}

    def on_train_epoch_begin(self, run_context):
        self.since = run_context.now()

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        self.seconds[step] = run_context.now() - self.since
        self.since = run_context.now()
        if step == CUT and self.path is not None:
            run_context.save_checkpoint(self.path)
            run_context.request_stop(interrupts=True)

    def of(self, *steps: int) -> float:
        return sum(self.seconds[step] for step in steps)


@pytest.fixture
def resume(tmp_path, capsys):
    """Runs with one callback, interrupted, and with another one, resumed."""

    def run(first: Callback, second: Callback) -> tuple[str, str, Times, Any]:
        times, path = Times(tmp_path / "cut.ckpt"), tmp_path / "cut.ckpt"
        make_trainer().train(EPOCHS, DATA, [first, times])
        before, times.path = capsys.readouterr().out, None
        result = make_trainer().train(EPOCHS, DATA, [second, times], resume=path)
        return before, capsys.readouterr().out, times, result

    return run


def test_losses_are_printed_at_the_steps_of_the_uninterrupted_run(resume, capsys):
    make_trainer().train(EPOCHS, DATA, LossMonitor(5))
    whole = capsys.readouterr().out

    before, after, _, _ = resume(LossMonitor(5), LossMonitor(5))

    assert before + after == whole


def test_an_epochs_time_is_that_of_all_its_steps(resume):
    _, after, times, _ = resume(TimeMonitor(data_time=True), TimeMonitor(data_time=True))

    total, each, waited = map(float, re.findall(r"([0-9.]+) ms", after.splitlines()[0]))
    assert total == pytest.approx(times.of(5, 6, 7, 8) * 1e3, abs=2e-3)
    assert each == pytest.approx(total / 4, abs=2e-3)
    assert 0 < waited <= each


def test_rates_are_those_of_the_last_steps_of_both_runs(resume):
    second = ThroughputMonitor(window=4, verbose=False)
    first = ThroughputMonitor(window=4, verbose=False)

    times = resume(first, second)[2]

    assert second.history["step"] == [4, 8, 12]
    assert second.history["steps_per_second"][0] == first.history["steps_per_second"][0]
    assert second.history["steps_per_second"][1] == pytest.approx(4 / times.of(5, 6, 7, 8))
    assert second.history["samples_per_second"][1] == pytest.approx(8 / times.of(5, 6, 7, 8))


def test_the_share_of_the_peak_is_that_of_the_steps_of_both_runs(resume):
    make = lambda: FlopsUtilizationCollector(4, full_flops=False)  # noqa: E731

    _, after, times, _ = resume(make(), make())

    found = list(map(float, re.findall(r"time: ([0-9.]+) ms", after)))
    wanted = [times.of(5, 6, 7, 8) / 4 * 1e3, times.of(9, 10, 11, 12) / 4 * 1e3]
    assert found == pytest.approx(wanted, abs=2e-3)


def test_the_share_of_the_peak_that_was_printed_last_is_kept(resume):
    first, second = FlopsUtilizationCollector(5), FlopsUtilizationCollector(50)

    resume(first, second)

    assert (second.mfu, second.hfu) == (first.mfu, first.hfu)
    assert second.mfu is not None


def test_the_progress_line_has_the_epochs_number_its_steps_loss_and_rate(resume):
    _, after, times, result = resume(ProgressBar(), ProgressBar())

    second, third = after.splitlines()
    losses = [f"{one['loss']:.4g}" for one in result.history]
    assert second.startswith(f"epoch 2/3: 4 steps, loss {losses[1]}, ")
    assert third.startswith(f"epoch 3/3: 4 steps, loss {losses[2]}, ")
    rate = float(second.split()[-2])
    assert rate == pytest.approx(4 / times.of(5, 6, 7, 8), rel=1e-3)


def test_the_bar_goes_by_the_number_of_the_runs_last_epoch(resume, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")

    shown = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", resume(ProgressBar(1e-9), ProgressBar(1e-9))[1])

    assert re.search("epoch 2/3 .* 3/4 loss", shown) and "3/4 loss" not in shown.split("2/3")[0]


def test_learning_rates_are_those_of_the_uninterrupted_run(resume):
    whole, second = LearningRateMonitor(5), LearningRateMonitor(5)
    make_trainer().train(EPOCHS, DATA, whole)

    resume(LearningRateMonitor(5), second)

    assert vars(second) == vars(whole)
    assert second.steps == [5, 10]


def test_memory_is_kept_of_both_runs(resume):
    first, second = DeviceMonitor(5), DeviceMonitor(5)

    resume(first, second)

    assert second.history["step"] == [5, 10]
    assert {name: values[:1] for name, values in second.history.items()} == first.history
