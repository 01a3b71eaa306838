"""C10: a recorded stream fed to the same subscribers gives the same acks, or a precise difference."""

import logging
from collections.abc import Callable as Function
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from railbus.bus import Events
from railbus.subscribers import (
    Callback,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    ReduceLROnPlateau,
    RunContext,
    StopAtStep,
    StopAtTime,
    TerminateOnNaN,
    Threshold,
    TimeMonitor,
    acks_of,
    between,
    every,
    once,
    replay,
    when,
)
from railbus.trainer import RunResult

from ..subscribers.scripted import DATA, Scripted, make_trainer


class Counts(Callback):
    """Adds a key of its own, and changes it on the basis of what others have written."""

    def on_train_begin(self, run_context: RunContext) -> None:
        run_context.original_args().seen = [0]

    def on_train_step_end(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        cb_params.seen = [*cb_params.seen[-2:], cb_params.cur_step_num]
        print("seen", cb_params.seen, cb_params.get("mark"), type(cb_params.net_outputs).__name__)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        if "mark" in cb_params:
            del cb_params.mark
        else:
            cb_params.mark = cb_params.metrics


class Waits(Callback):
    """Handles its events on the event loop."""

    async def on_train_step_end(self, run_context: RunContext) -> None:
        run_context.original_args().awaited = run_context.now()

    async def on_eval_step_end(self, run_context: RunContext) -> None:
        print("validated", run_context.original_args().cur_step_num, run_context.wall_time())

    async def on_train_epoch_end(self, run_context: RunContext) -> None:
        if run_context.get_stop_requested():
            print("stopping")


class Fails(Callback):
    """Raises at one step."""

    def __init__(self, step: int, on_error: Any) -> None:
        self.step, self.on_error = step, on_error

    def on_train_step_end(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num == self.step:
            raise RuntimeError("bad luck")

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        print("failed:", run_context.original_args().stop_reason)


class Cuts(Callback):
    """Cuts its second validation short."""

    def on_eval_begin(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_epoch_num == 2:
            run_context.request_stop("short of time")


def say(run_context: RunContext) -> None:
    print("told", run_context.event.seq, dict(run_context.hyperparams()))


MAKERS: dict[str, Function[[], Callback]] = {
    "early": lambda: EarlyStopping("accuracy", patience=2, verbose=True),
    "plateau": lambda: ReduceLROnPlateau("accuracy", patience=1, verbose=True),
    "schedule": lambda: LearningRateScheduler(lambda rate, step: rate * 0.9 if step == 5 else rate),
    "by epoch": lambda: LearningRateScheduler(lambda rate, epoch: rate / epoch, by="epoch"),
    "at step": lambda: StopAtStep(step=9),
    "at epoch": lambda: StopAtStep(epoch=3),
    "at time": lambda: StopAtTime(1e-6),
    "threshold": lambda: Threshold("accuracy", above=0.65),
    "nan": TerminateOnNaN,
    "time": lambda: TimeMonitor(data_time=True),
    "loss": lambda: LossMonitor(3),
    "history": History,
    "every": lambda: every(3, LambdaCallback(on_train_step_end=say)),
    "seconds": lambda: every(1e-4, LambdaCallback(on_train_step_begin=say), unit="seconds"),
    "once": lambda: once(LambdaCallback(on_train_step_end=say)),
    "between": lambda: between(3, 6, LossMonitor(1)),
    "when": lambda: when(lambda run: run.original_args().cur_step_num % 4 == 1, LossMonitor(1)),
    "counts": Counts,
    "waits": Waits,
    "cuts": Cuts,
    "stops": lambda: Fails(6, "stop"),
    "detaches": lambda: Fails(3, "detach"),
}
ACCURACIES = [0.5, 0.6, 0.6, 0.6]


def run(callbacks: list[Callback]) -> tuple[Events, RunResult | BaseException]:
    """A real run with these callbacks, and what it committed."""
    trainer = make_trainer({"accuracy": Scripted(ACCURACIES)})
    result: RunResult | BaseException
    try:
        result = trainer.fit(len(ACCURACIES), DATA, DATA[:2], callbacks=callbacks)
    except RuntimeError as error:
        result = error
    [log] = trainer.bus.runs.values()
    assert log.about is not None
    return Events(log.about, tuple(log.entries())), result


@settings(max_examples=25)
@given(names=st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=9))
def test_the_same_callbacks_replay_to_the_same_acks_lines_and_decisions(names: list[str]) -> None:
    logging.getLogger("railbus").setLevel(logging.CRITICAL)
    recorded, lines = recorded_run(names)

    replayed = replay(recorded, [MAKERS[name]() for name in names])

    assert replayed.error is None
    assert replayed.diverged is None
    assert replayed.acks == tuple(acks_of(recorded))
    assert list(replayed.lines) == lines
    assert replayed.decisions == tuple(entry.decision for entry in entries(recorded))
    assert replayed.committed == recorded.entries


def recorded_run(names: list[str]) -> tuple[Events, list[str]]:
    """A real run with callbacks of these names, and what was printed."""
    from contextlib import redirect_stdout
    from io import StringIO

    printed = StringIO()
    with redirect_stdout(printed):
        recorded, _ = run([MAKERS[name]() for name in names])
    return recorded, printed.getvalue().splitlines()


def entries(stream: Any) -> list[Any]:
    return list(stream)
