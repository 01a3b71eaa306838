"""C10: a recorded stream fed to the same subscribers gives the same acks, or a precise difference."""

from collections.abc import Callable as Function
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from railbus.bus import Events
from railbus.schemas import NotRecorded
from railbus.subscribers import (
    Callback,
    CheckpointConfig,
    CSVLogger,
    EarlyStopping,
    History,
    JSONLogger,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    ModelCheckpoint,
    ReduceLROnPlateau,
    RunContext,
    StopAtStep,
    StopAtTime,
    TerminateOnNaN,
    Threshold,
    TimeMonitor,
    acks_of,
    between,
    checkpoints,
    diff,
    every,
    once,
    replay,
    when,
)
from railbus.trainer import RunAhead, RunResult, load_checkpoint

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


LIVE = frozenset(
    """
    network loss_fn optimizer eval_network train_network train_dataset valid_dataset list_callback
    train_dataset_element eval_dataset_element
    """.split()
)


class Shows(Callback):
    """Prints all of `cb_params` that is a value, at every event."""

    def _show(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        values = {key: value for key, value in cb_params.items() if key not in LIVE}
        in_eval = cb_params.mode == "eval"  # there outputs and labels are references
        print({**values, "net_outputs": values["net_outputs"][0]} if in_eval else values)

    on_train_begin = on_train_epoch_begin = on_train_step_begin = on_train_step_end = _show
    on_train_epoch_end = on_train_end = on_eval_step_end = _show


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
    "shows": Shows,
    "waits": Waits,
    "cuts": Cuts,
    "stops": lambda: Fails(6, "stop"),
    "detaches": lambda: Fails(3, "detach"),
}
OTHERS = ("counts", "plateau", "threshold")  # of classes of their own
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
    recorded, lines = recorded_run(names)

    replayed = replay(recorded, [MAKERS[name]() for name in names])

    assert replayed.error is None
    assert replayed.diverged is None
    assert replayed.acks == tuple(acks_of(recorded))
    assert list(replayed.lines) == lines
    assert replayed.committed == recorded.entries


def recorded_run(names: list[str]) -> tuple[Events, list[str]]:
    """A real run with callbacks of these names, and what was printed."""
    printed = StringIO()
    with redirect_stdout(printed):
        recorded, _ = run([MAKERS[name]() for name in names])
    return recorded, printed.getvalue().splitlines()


def test_every_value_comes_back_as_it_was_shown():
    def callbacks() -> list[Callback]:
        return [Counts(), LearningRateScheduler(lambda rate, step: rate / 2), Shows()]

    trainer = make_trainer({"mse", "mae"})
    printed = StringIO()
    with redirect_stdout(printed):
        trainer.fit(3, DATA, DATA[:2], callbacks=callbacks())
    [log] = trainer.bus.runs.values()
    assert log.about is not None

    replayed = replay(Events(log.about, tuple(log.entries())), callbacks())

    assert replayed.error is None
    assert list(replayed.lines) == printed.getvalue().splitlines()


def test_the_acks_are_those_that_the_callbacks_gave():
    asked = []

    class Told(Callback):
        def on_train_step_end(self, run_context: RunContext) -> None:
            asked.append(run_context.event.seq)

        def on_eval_end(self, run_context: RunContext) -> None:
            asked.append(run_context.event.seq)

    recorded, _ = run([Told()])

    live = list(asked)
    replayed = replay(recorded, Told())
    assert [ack.seq for ack in acks_of(recorded)] == live
    assert [ack.seq for ack in replayed.acks] == live


def test_a_run_that_failed_replays_to_its_exception():
    # Who raised comes first: the event was withdrawn, and no recording has it.
    def callbacks() -> list[Callback]:
        return [Fails(6, "raise"), LossMonitor(1), History(), TimeMonitor()]

    recorded, error = run(callbacks())

    replayed = replay(recorded, callbacks())

    assert isinstance(error, RuntimeError)
    assert replayed.committed == recorded.entries
    assert replayed.acks == tuple(acks_of(recorded))
    assert replayed.lines[-1] == "failed: RuntimeError: bad luck"


def test_steps_that_could_not_be_left_out_after_a_stop_are_replayed_too():
    trainer = make_trainer(run_ahead=RunAhead(exact=False, block_steps=4))
    trainer.train(3, DATA, callbacks=[StopAtStep(step=2), LossMonitor()])
    [log] = trainer.bus.runs.values()
    assert log.about is not None
    recorded = Events(log.about, tuple(log.entries()))

    replayed = replay(recorded, [StopAtStep(step=2), LossMonitor()])

    assert replayed.committed == recorded.entries
    assert replayed.committed[-1].event.cb_params.cur_step_num > 2
    assert replayed.diverged is None


@pytest.mark.parametrize("left_out", ["counts", "plateau", "waits", "stops"])
def test_callbacks_that_are_left_out_act_from_the_record(left_out):
    names = ["counts", "plateau", "waits", "loss", "stops"]
    recorded, _ = recorded_run(names)

    replayed = replay(recorded, [MAKERS[name]() for name in names if name != left_out])

    assert replayed.committed == recorded.entries
    assert replayed.diverged is None


@pytest.mark.parametrize("alone", sorted(MAKERS.keys() - {*OTHERS}))
def test_one_callback_of_a_run_replays_alone(alone):
    recorded, _ = recorded_run([*OTHERS, alone])

    replayed = replay(recorded, MAKERS[alone]())

    assert diff(recorded, replayed) is None
    assert replayed.committed == recorded.entries


def test_a_callback_that_was_changed_gives_a_precise_difference():
    recorded, _ = run([LossMonitor(0), EarlyStopping("accuracy", patience=1)])

    found = diff(recorded, replay(recorded, [EarlyStopping("accuracy", patience=2)]))

    assert found is not None
    assert (found.hook, found.by, found.field) == ("on_train_epoch_end", "EarlyStopping", "stop")
    assert found.right is None


def test_files_of_a_replay_are_those_of_the_run(tmp_path):
    def loggers(folder: Path) -> list[Callback]:
        return [CSVLogger(folder / "log.csv"), JSONLogger(folder / "log.json")]

    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    recorded, _ = run(loggers(first))

    replayed = replay(recorded, loggers(second))

    assert replayed.error is None
    for path in first.iterdir():
        assert (second / path.name).read_bytes() == path.read_bytes()


def test_an_observer_of_a_replay_sees_what_it_saw_in_the_run():
    class Watches(Callback):
        observes, lag = True, 64
        needs = {"train_network": 100}  # no step of this run

        def __init__(self) -> None:
            self.seen = list[Any]()

        def on_train_step_end(self, run_context: RunContext) -> None:
            self.seen.append((run_context.now(), repr(run_context.original_args())))

        def on_train_end(self, run_context: RunContext) -> None:
            self.seen.append(run_context.original_args().status)

    live, again = Watches(), Watches()
    recorded, _ = run([live, Counts()])

    replayed = replay(recorded, [again])

    assert replayed.committed == recorded.entries
    assert len(live.seen) == len(ACCURACIES) * len(DATA) + 1
    assert again.seen == live.seen


def test_the_network_comes_from_the_checkpoints_of_the_run(tmp_path):
    def early() -> EarlyStopping:
        return EarlyStopping("accuracy", patience=2, verbose=True, restore_best_weights=True)

    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=0)
    saver = ModelCheckpoint("net", tmp_path, config)
    kept = early()
    recorded, _ = run([kept, saver])
    network = checkpoints(tmp_path, load_checkpoint)

    with_network = replay(recorded, early(), network=network)
    without = replay(recorded, early())

    assert with_network.error is None
    assert with_network.committed == recorded.entries
    assert with_network.lines[0] == "Restoring model weights from the end of the best epoch."
    assert isinstance(without.error, NotRecorded)
    assert "network=checkpoints" in str(without.error)


def test_the_network_at_a_step_is_the_one_that_was_saved_there(tmp_path):
    class Keeps(Callback):
        def __init__(self) -> None:
            self.kernels = list[float]()

        def on_train_step_end(self, run_context: RunContext) -> None:
            params = run_context.original_args().train_network.params
            self.kernels.append(float(np.asarray(params["kernel"]).item()))

    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=0)
    live, again = Keeps(), Keeps()
    recorded, _ = run([live, ModelCheckpoint("net", tmp_path, config)])

    replayed = replay(recorded, again, network=checkpoints(tmp_path, load_checkpoint))

    assert replayed.error is None
    assert again.kernels == live.kernels
    assert len(set(live.kernels)) > 1


class Stops(Callback):
    """Asks for the end of an evaluation at its first step."""

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        run_context.request_stop()


def test_a_lone_evaluation_replays():
    def callbacks() -> list[Callback]:
        cut = LambdaCallback(on_eval_step_end=lambda run: run.request_stop("enough"))
        return [LossMonitor(1), TimeMonitor(), every(2, cut)]

    trainer = make_trainer()
    printed = StringIO()
    with redirect_stdout(printed):
        trainer.eval(DATA, callbacks=callbacks())
    [log] = trainer.bus.runs.values()
    assert log.about is not None
    recorded = Events(log.about, tuple(log.entries()))

    replayed = replay(recorded, callbacks())
    sooner = replay(recorded, Stops())

    assert replayed.committed == recorded.entries
    assert list(replayed.lines) == printed.getvalue().splitlines()
    assert replayed.stop is not None
    assert sooner.diverged is not None
    assert sooner.committed[-1].event.hook.value == "on_eval_step_end"


def test_a_run_that_failed_at_its_first_event_replays():
    def fail(run_context: RunContext) -> None:
        raise RuntimeError("bad luck")

    recorded, error = run([Fails(1, "raise"), LambdaCallback(on_train_begin=fail)])

    replayed = replay(recorded, [Fails(1, "raise"), LambdaCallback(on_train_begin=fail)])

    assert isinstance(error, RuntimeError)
    assert len(recorded) == 1
    assert replayed.committed == recorded.entries
    assert replayed.lines == ("failed: RuntimeError: bad luck",)
