"""`ModelCheckpoint`, `BackupAndRestore` and `OnRequestExit`."""

import json
import logging
import os
import signal
import threading
from typing import Any

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError, CheckpointError
from railbus.subscribers import (
    BackupAndRestore,
    Callback,
    CheckpointConfig,
    LambdaCallback,
    ModelCheckpoint,
    OnRequestExit,
)
from railbus.trainer import Trainer, load_checkpoint
from railbus.trainer.checkpoint import read_metadata

from .scripted import Pause

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(1, 5)]


class Scripted:
    """A metric whose values are given, one per validation."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def reset(self) -> None:
        pass

    def update(self, **_: Any) -> None:
        pass

    def compute(self) -> float:
        return self.values.pop(0)


def make(*values: float) -> Trainer:
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    metrics: Any = {"score": Scripted(*values)} if values else {"mse"}
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optax.sgd(0.01), metrics)


def names(folder: Any) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_best_k_by_a_monitored_value_are_kept_and_the_last(tmp_path):
    saver = ModelCheckpoint(
        "net", tmp_path, monitor="score", mode="max", save_top_k=2, save_last=True
    )
    make(1.0, 3.0, 2.0, 0.5, 4.0, 3.5).fit(6, DATA, DATA, 1, saver)

    assert names(tmp_path) == ["net-5_4.ckpt", "net-6_4.ckpt", "net-last.ckpt"]
    assert saver.best == 4.0
    assert saver.latest_ckpt_file_name.endswith("net-6_4.ckpt")


def test_nan_is_never_among_the_best(tmp_path):
    saver = ModelCheckpoint("net", tmp_path, monitor="score", mode="min")
    make(float("nan"), 2.0, float("nan")).fit(3, DATA, DATA, 1, saver)

    assert names(tmp_path) == ["net-2_4.ckpt"]


def test_a_monitor_that_this_run_will_not_have_is_refused_at_its_begin(tmp_path):
    saver = ModelCheckpoint("net", tmp_path, monitor="mse")

    with pytest.raises(ArgumentError, match="needs a validation"):
        make().train(1, DATA, saver)


@pytest.mark.parametrize("asynchronous", [False, True, "thread"])
def test_saving_in_the_background_saves_the_same(tmp_path, asynchronous):
    kernels = []
    look = LambdaCallback(
        on_train_step_end=lambda run_context: kernels.append(
            np.asarray(run_context.original_args().train_network.params["kernel"])
        )
    )
    config = CheckpointConfig(1, keep_checkpoint_max=0, async_save=asynchronous)
    make().train(1, DATA, [ModelCheckpoint("net", tmp_path, config), look])

    found = [load_checkpoint(tmp_path / f"net-1_{k}.ckpt")["kernel"] for k in range(1, 5)]
    assert all(np.array_equal(a, b) for a, b in zip(found, kernels, strict=True))


def test_a_file_that_cannot_be_written_fails_the_run_and_names_it(tmp_path):
    (tmp_path / "net-1_2.ckpt").mkdir()
    (tmp_path / "net-1_2.ckpt" / "mine.txt").write_text("not a checkpoint")

    saver = ModelCheckpoint("other", tmp_path, CheckpointConfig(1))
    saver._prefix = "net"  # behind the back of the search for a free prefix
    saver_name = "net"
    hook = saver.on_train_begin

    def begin(run_context: Any) -> None:
        hook(run_context)
        saver._name = saver_name

    saver.on_train_begin = begin  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"net-1_2\.ckpt"):
        make().train(1, DATA, saver)

    assert (tmp_path / "net-1_2.ckpt" / "mine.txt").exists()


def test_a_run_that_fails_saves_where_it_was_if_asked(tmp_path):
    """Its name and notes said the step that had begun; what it holds is the one before."""

    def fail(run_context):
        if run_context.original_args().cur_step_num == 3:
            raise RuntimeError("no")

    config = CheckpointConfig(100, exception_save=True, append_info=["epoch_num", "step_num"])
    saver = ModelCheckpoint("net", tmp_path, config)
    with pytest.raises(RuntimeError, match="no"):
        make().train(1, DATA, [LambdaCallback(on_train_step_end=fail), saver])

    (name,) = names(tmp_path)
    assert name == "net-1_2_breakpoint.ckpt"
    assert read_metadata(tmp_path / name) == {"epoch_num": 1, "step_num": 2}
    result = make().train(1, DATA, resume=tmp_path / name)
    assert (result.step, result.stats.steps) == (4, 2)


def test_the_latest_is_one_with_the_callbacks_states_where_there_is_one(tmp_path):
    def fail(run_context):
        if run_context.original_args().cur_step_num == 7:
            raise RuntimeError("no")

    config = CheckpointConfig(3, exception_save=True)
    with pytest.raises(RuntimeError, match="no"):
        make().train(
            3,
            DATA,
            [LambdaCallback(on_train_step_end=fail), ModelCheckpoint("net", tmp_path, config)],
        )
    again = make().train(3, DATA, ModelCheckpoint("net", tmp_path, config), resume="latest")

    assert "net-2_2_breakpoint.ckpt" in names(tmp_path)
    assert (again.step, again.stats.steps) == (12, 6)


def test_functions_name_folder_and_file(tmp_path):
    saver = ModelCheckpoint(
        lambda cb_params: f"step{cb_params.cur_step_num}",
        lambda cb_params: tmp_path / f"epoch{cb_params.cur_epoch_num}",
        CheckpointConfig(2, keep_checkpoint_max=1, format="safetensors"),
    )
    make().train(2, DATA, saver)

    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors")] == [
        "epoch2/step8.safetensors"
    ]


def test_one_file_per_so_many_minutes_and_the_newest_are_kept(tmp_path):
    saver = ModelCheckpoint(
        "net", tmp_path, CheckpointConfig(1, keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=1)
    )
    make().train(2, DATA, saver)

    assert names(tmp_path) == ["net-1_1.ckpt", "net-2_4.ckpt"]


def test_two_in_one_list_keep_their_own_files(tmp_path):
    savers = [
        ModelCheckpoint("best", tmp_path, monitor="score", mode="min"),
        ModelCheckpoint("step", tmp_path, CheckpointConfig(4, keep_checkpoint_max=1)),
    ]
    make(3.0, 1.0, 2.0).fit(3, DATA, DATA, 1, savers)

    assert names(tmp_path) == ["best-2_4.ckpt", "step-3_4.ckpt"]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (CheckpointConfig, {"saved_network": 1}),
        (CheckpointConfig, {"enc_key": b"k"}),
        (CheckpointConfig, {"async_save": "process"}),
        (CheckpointConfig, {"keep_checkpoint_per_n_minutes": -1}),
        (ModelCheckpoint, {"monitor": "strange"}),
        (ModelCheckpoint, {"save_last": True}),
        (ModelCheckpoint, {"prefix": str, "monitor": "mse", "save_last": True}),
        (ModelCheckpoint, {"monitor": "mse", "save_top_k": -1}),
        (BackupAndRestore, {"backup_dir": " "}),
        (BackupAndRestore, {"backup_dir": "a", "save_freq": "step"}),
        (BackupAndRestore, {"backup_dir": "a", "save_freq": 0}),
        (OnRequestExit, {"sig": signal.SIGKILL}),
        (OnRequestExit, {"sig": (signal.SIGTERM, signal.SIGSTOP)}),
        (OnRequestExit, {"sig": "TERM"}),
        (OnRequestExit, {"file_name": "a/b"}),
    ],
)
def test_constructors_refuse_what_cannot_work(kind, arguments):
    with pytest.raises((TypeError, ValueError)):
        kind(**arguments)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_where_every_epoch_is_kept_that_of_a_nan_is_too(tmp_path, mode):
    """With `save_top_k=0` it was left out."""
    saver = ModelCheckpoint("net", tmp_path, monitor="score", mode=mode, save_top_k=0)
    make(float("nan"), 2.0, float("nan")).fit(3, DATA, DATA, 1, saver)

    assert names(tmp_path) == ["net-1_4.ckpt", "net-2_4.ckpt", "net-3_4.ckpt"]
    assert saver.best == 2.0


def test_a_run_that_goes_on_with_fewer_files_lets_go_of_that_of_a_nan_first(tmp_path):
    every = ModelCheckpoint("net", tmp_path, monitor="score", mode="max", save_top_k=0)
    make(2.0, float("nan")).fit(2, DATA, DATA, 1, every)
    best = ModelCheckpoint("net", tmp_path, monitor="score", mode="max", save_top_k=2)
    make(1.0).fit(3, DATA, DATA, 1, best, resume="latest")

    assert names(tmp_path) == ["net-1_4.ckpt", "net-3_4.ckpt"]


@pytest.mark.parametrize("arguments", [{"monitor": "score", "mode": "min"}, {}])
def test_what_is_saved_on_an_exception_takes_no_other_files_place(tmp_path, arguments):
    """It counted as one of those to keep, with the value 0."""

    def fail(run_context):
        if run_context.original_args().cur_step_num == 7:
            raise RuntimeError("no")

    config = CheckpointConfig(4, keep_checkpoint_max=1, exception_save=True)
    saver = ModelCheckpoint("net", tmp_path, config, **arguments)
    with pytest.raises(RuntimeError, match="no"):
        make(0.5).fit(3, DATA, DATA, [1], [LambdaCallback(on_train_step_end=fail), saver])

    assert names(tmp_path) == ["net-1_4.ckpt", "net-2_2_breakpoint.ckpt"]
    assert saver.latest_ckpt_file_name.endswith("net-2_2_breakpoint.ckpt")


def test_a_function_names_what_is_saved_on_an_exception_otherwise(tmp_path):
    """It took the place of the step's own file, which has the states of the callbacks."""

    def fail(run_context):
        if run_context.original_args().cur_step_num == 3:
            raise RuntimeError("no")

    config = CheckpointConfig(1, exception_save=True)
    saver = ModelCheckpoint(lambda cb_params: f"s{cb_params.cur_step_num}", tmp_path, config)
    with pytest.raises(RuntimeError, match="no"):
        make().train(1, DATA, [LambdaCallback(on_train_step_end=fail), saver])

    assert names(tmp_path) == ["s1.ckpt", "s2.ckpt", "s2_breakpoint.ckpt"]


def test_two_whose_functions_name_one_file_are_refused(tmp_path):
    """The second one replaced the file of the first."""
    savers = [
        ModelCheckpoint(lambda cb_params: "net", tmp_path, CheckpointConfig(steps))
        for steps in (1, 3)
    ]

    with pytest.raises(ArgumentError, match=r"two ModelCheckpoints save as .*net.ckpt"):
        make().train(1, DATA, savers)


@pytest.mark.parametrize(
    "make_saver",
    [
        lambda folder: ModelCheckpoint("net", folder, CheckpointConfig(3)),
        lambda folder: BackupAndRestore(folder, 3),
        lambda folder: OnRequestExit(directory=folder),
    ],
)
def test_a_save_that_fails_in_a_run_that_fails_is_said(tmp_path, make_saver, caplog):
    """It was dropped without a word."""
    folder = tmp_path / "file"
    saver = make_saver(folder)

    def act(run_context):
        step = run_context.original_args().cur_step_num
        if step == 3:
            folder.write_text("no folder")
            if isinstance(saver, OnRequestExit):
                saver.request()

    def fail(run_context):
        raise RuntimeError("the run's own error")

    late = LambdaCallback(on_train_step_end=act, on_train_epoch_end=fail)
    data = DATA[:3] if isinstance(saver, (ModelCheckpoint, BackupAndRestore)) else DATA
    with pytest.raises(RuntimeError, match="own error"):
        make().train(1, data, [late, saver])

    said = [one for one in caplog.records if "is not saved" in one.getMessage()]
    assert len(said) == 1
    assert said[0].exc_info and isinstance(said[0].exc_info[1], CheckpointError)


@pytest.mark.parametrize(
    ("kind", "arguments", "name", "resume"),
    [
        (ModelCheckpoint, {"prefix": "net"}, "net-2_2.ckpt", "latest"),
        (ModelCheckpoint, {"prefix": "net"}, "net-2_2.ckpt", "net-2_2.ckpt"),
        (BackupAndRestore, {}, "backup-6.ckpt", None),
        (OnRequestExit, {}, "Net_train.ckpt", None),
    ],
)
def test_a_run_goes_on_from_a_checkpoint_that_was_being_replaced(
    tmp_path, monkeypatch, kind, arguments, name, resume
):
    """The writer was killed while the one before was aside, and no other bore the name."""
    monkeypatch.chdir(tmp_path)
    folder = "backup_dir" if kind is BackupAndRestore else "directory"
    saver, again = (kind(**arguments, **{folder: tmp_path}) for _ in range(2))
    act = saver.request if kind is OnRequestExit else None
    stop = Pause(6) if act is None else Sends(6, act)
    make().train(3, DATA, [stop, saver])
    (tmp_path / name).rename(tmp_path / f".{name}.old")
    for newer in tmp_path.glob("net-1_*"):
        os.utime(newer, (0, 0))

    result = make().train(3, DATA, again, resume=resume)

    assert (result.status, result.step, result.stats.steps) == ("completed", 12, 6)


# BackupAndRestore


@pytest.mark.parametrize("frequency", ["epoch", 3])
def test_a_run_that_has_failed_goes_on_where_it_was_backed_up(tmp_path, frequency):
    """MindSpore's forgets epoch and step, and trains all epochs again."""
    steps: list[int] = []

    def count(run_context):
        steps.append(run_context.original_args().cur_step_num)
        if len(steps) == 11:
            raise RuntimeError("no")

    callbacks = [LambdaCallback(on_train_step_begin=count), BackupAndRestore(tmp_path, frequency)]
    with pytest.raises(RuntimeError, match="no"):
        make().train(4, DATA, callbacks)
    backed = 8 if frequency == "epoch" else 9

    make().train(4, DATA, callbacks)

    assert steps == [*range(1, 12), *range(backed + 1, 17)]
    assert names(tmp_path) == []


def test_a_stopped_run_keeps_its_backup(tmp_path):
    """Keras' deletes it then, so that a stop at NaN loses everything (keras#21771)."""
    make().train(4, DATA, [Pause(6), BackupAndRestore(tmp_path)])

    assert names(tmp_path) == ["backup-6.ckpt"]
    result = make().train(4, DATA, BackupAndRestore(tmp_path))
    assert (result.step, result.stats.steps) == (16, 10)


def test_nothing_was_backed_up_and_nothing_is_deleted(tmp_path):
    """MindSpore's ends in a FileNotFoundError there."""
    make().train(1, DATA, BackupAndRestore(tmp_path / "new", 100))

    assert not (tmp_path / "new").exists()


# OnRequestExit


class Sends(Callback):
    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.step:
            self.act()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_at_the_step_and_the_handlers_come_back(tmp_path, number):
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    leaves = OnRequestExit(directory=tmp_path)
    result = make().train(3, DATA, [Sends(6, lambda: os.kill(os.getpid(), number)), leaves])

    assert (result.status, result.step, result.by) == ("stopped", 6, "OnRequestExit")
    assert result.reason == f"received {signal.Signals(number).name}"
    assert {one: signal.getsignal(one) for one in before} == before
    again = make().train(3, DATA, OnRequestExit(directory=tmp_path))
    assert (again.status, again.step, again.stats.steps) == ("completed", 12, 6)
    assert names(tmp_path) == []


def test_a_signal_is_heard_where_another_callback_has_a_deadline(tmp_path, caplog):
    """Callbacks are then entered in a thread that can set no handler; it was only said."""

    class Hurried(Callback):
        deadline = 60.0

    before = signal.getsignal(signal.SIGTERM)
    act = Sends(6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    result = make().train(100, DATA, [act, Hurried(), OnRequestExit(directory=tmp_path)])

    assert (result.status, result.reason) == ("stopped", "received SIGTERM")
    assert names(tmp_path) == ["Net_train.ckpt"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert "signals are not handled" not in caplog.text


def test_two_of_them_hear_the_same_signal(tmp_path):
    """The second one took it from the first."""
    leaves = [OnRequestExit(directory=tmp_path, file_name=name) for name in ("a", "b")]
    make().train(3, DATA, [Sends(6, lambda: os.kill(os.getpid(), signal.SIGTERM)), *leaves])

    assert names(tmp_path) == ["a_train.ckpt", "b_train.ckpt"]


def test_handlers_that_cannot_all_be_set_leave_none_and_exit_the_callbacks(tmp_path):
    exited = []

    class Wrong(Callback):
        signal_handlers = {signal.SIGTERM: print, signal.SIGKILL: print}

        def __exit__(self, kind, error, traceback):
            exited.append(kind)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match="Invalid argument"):
        make().train(1, DATA, Wrong())

    assert exited == [OSError]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_meets_the_handler_that_was_there_before(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        make().train(3, DATA, [Sends(6, twice), OnRequestExit(directory=tmp_path)])


def test_a_file_asks_to_exit(tmp_path):
    file = tmp_path / "exit.json"
    file.write_text("{")
    leaves = OnRequestExit(directory=tmp_path / "out", config_file=file)
    act = Sends(5, lambda: file.write_text(json.dumps({"GracefulExit": 1})))

    assert make().train(3, DATA, [act, leaves]).step == 5
    assert names(tmp_path / "out") == ["Net_train.ckpt"]


def test_a_call_from_another_thread_ends_a_validation_and_the_run(tmp_path):
    leaves = OnRequestExit(directory=tmp_path)

    def ask(run_context):
        thread = threading.Thread(target=leaves.request, args=("enough",))
        thread.start()
        thread.join()

    result = make().fit(3, DATA, DATA, 1, [LambdaCallback(on_eval_step_begin=ask), leaves])

    assert (result.status, result.reason, result.step) == ("stopped", "enough", 4)


def test_in_another_thread_signals_are_left_alone_and_that_is_said(tmp_path, caplog):
    before = signal.getsignal(signal.SIGTERM)
    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(
            target=make().train, args=(1, DATA, OnRequestExit(directory=tmp_path))
        )
        thread.start()
        thread.join()

    assert signal.getsignal(signal.SIGTERM) is before
    assert any(
        "another thread than the main one" in record.getMessage() for record in caplog.records
    )


def test_a_lone_evaluation_leaves_after_its_step(tmp_path):
    leaves = OnRequestExit(directory=tmp_path)
    steps: list[int] = []

    def ask(run_context):
        steps.append(1)
        leaves.request()

    make().eval(DATA, [LambdaCallback(on_eval_step_begin=ask), leaves])

    assert len(steps) == 1
