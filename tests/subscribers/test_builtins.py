"""The built-in callbacks, and the MindSpore defects that they do not have."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import (
    Callback,
    CheckpointConfig,
    History,
    LambdaCallback,
    LossMonitor,
    ModelCheckpoint,
    StopAtTime,
    TimeMonitor,
)
from railbus.trainer import Trainer, load_checkpoint

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer(loss_fn=lambda out, y: jnp.square(out - y).mean()) -> Trainer:
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.01), {"mse"})


def test_loss_monitor_prints_on_a_grid_over_all_epochs_and_validation_results(capsys):
    make_trainer().fit(2, DATA, DATA, callbacks=LossMonitor(3))

    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"[0-9.e-]+$|[0-9.e-]+\}$", "#", line) for line in lines] == [
        "epoch: 1 step: 3, loss is #",
        "Eval result: epoch 1, metrics: {'mse': #",
        "epoch: 2 step: 2, loss is #",
        "Eval result: epoch 2, metrics: {'mse': #",
    ]


@pytest.mark.parametrize("times", [0, 1])
@pytest.mark.parametrize("as_tuple", [False, True])
def test_loss_monitor_stops_at_nan_where_mindspores_raises_or_misses_it(times, as_tuple):
    def loss_fn(out, y):
        loss = (out - y).mean() * jnp.float32(np.nan)
        return (loss, out) if as_tuple else loss

    result = make_trainer(loss_fn).train(3, DATA, LossMonitor(times))

    assert (result.status, result.step) == ("stopped", 1)
    assert result.reason == "epoch 1 step 1: an output is NaN or Inf"


def test_time_monitor_leaves_the_validation_out_and_divides_by_the_steps_run(capsys):
    class Clocked(Callback):
        def on_train_step_end(self, run_context):
            self.ended = run_context.now()
            if run_context.original_args().cur_step_num == 2:
                run_context.request_stop()

        def on_train_epoch_begin(self, run_context):
            self.began = run_context.now()

    clock = Clocked()
    make_trainer().fit(1, DATA, DATA, callbacks=[clock, TimeMonitor()])

    total = (clock.ended - clock.began) * 1e3
    line = f"Train epoch time: {total:5.3f} ms, per step time: {total / 2:5.3f} ms"
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_history_keeps_values_with_their_epochs_and_starts_anew():
    history, trainer = History(), make_trainer()
    for _ in range(2):
        trainer.fit(3, DATA, DATA, 2, [history])

    assert history.epoch == {"epoch": [1, 2, 3]}
    assert history.epochs == {"net_output": [1, 2, 3], "mse": [2], "eval_loss": [2]}
    assert {name: len(values) for name, values in history.history.items()} == {
        "net_output": 3,
        "mse": 1,
        "eval_loss": 1,
    }


def test_lambda_callback_fires_in_the_validation_of_fit_and_refuses_what_it_cannot_call():
    seen = []
    callback = LambdaCallback(on_eval_end=lambda context: seen.append(context.event.hook.value))

    make_trainer().fit(1, DATA, DATA, callbacks=callback)

    assert seen == ["on_eval_end"]
    for wrong in ({"on_step": print}, {"on_eval_end": 3}, {"step_end": print}):
        with pytest.raises(TypeError):
            LambdaCallback(**wrong)


def test_stop_at_time_stops_by_the_events_own_time():
    assert make_trainer().train(9, DATA, StopAtTime(1e-9)).step == 1
    assert make_trainer().train(2, DATA, StopAtTime(1e9)).step == 8


@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_checkpoints_hold_the_network_of_their_step_and_the_oldest_go(tmp_path, format):
    kernels = {}

    class Keeps(Callback):
        def on_train_step_end(self, run_context):
            params = run_context.original_args()
            name = f"net-{params.cur_epoch_num}_{params.cur_batch_num}.{format}"
            kernels[name] = np.asarray(params.train_network.params["kernel"])

    config = CheckpointConfig(3, keep_checkpoint_max=2, format=format)
    saver = ModelCheckpoint("net", tmp_path / "deep/er", config)
    make_trainer().train(2, DATA, [saver, Keeps()])

    names = sorted(path.name for path in (tmp_path / "deep/er").iterdir())
    assert names == [f"net-2_2.{format}", f"net-2_4.{format}"]
    assert saver.latest_ckpt_file_name.endswith(names[-1])
    for name in names:
        assert np.array_equal(load_checkpoint(tmp_path / "deep/er" / name)["kernel"], kernels[name])


def test_a_second_run_does_not_overwrite_the_first_ones_files(tmp_path):
    saver, trainer = ModelCheckpoint("net", tmp_path, CheckpointConfig(4)), make_trainer()
    for _ in range(3):
        trainer.train(1, DATA, saver)

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["net-1_4.ckpt", "net_1-1_4.ckpt", "net_2-1_4.ckpt"]


def test_an_old_checkpoint_goes_only_when_the_new_one_is_safe(tmp_path):
    (tmp_path / "net-1_2.safetensors").parent.mkdir(exist_ok=True)

    class Blocks(Callback):
        def on_train_step_begin(self, run_context):
            if run_context.original_args().cur_step_num == 2:
                (tmp_path / "net-1_2.safetensors").mkdir()

    config = CheckpointConfig(1, keep_checkpoint_max=1, format="safetensors")
    with pytest.raises(ValueError):
        make_trainer().train(1, DATA, [Blocks(), ModelCheckpoint("net", tmp_path, config)])

    assert load_checkpoint(tmp_path / "net-1_1.safetensors")["kernel"].shape == (1, 1)


def test_the_best_by_a_monitored_value_is_kept(tmp_path):
    best = ModelCheckpoint("best", tmp_path, CheckpointConfig(keep_checkpoint_max=1),
                           monitor="mse", mode="min")  # fmt: skip
    result = make_trainer().fit(4, DATA, DATA, callbacks=best)

    lowest = min(result.history, key=lambda epoch: epoch["mse"])["epoch"]
    assert [path.name for path in tmp_path.iterdir()] == [f"best-{lowest}_4.ckpt"]


def test_two_savers_of_one_prefix_and_folder_are_refused(tmp_path):
    savers = [ModelCheckpoint("net", tmp_path) for _ in range(2)]
    with pytest.raises(ValueError, match="give them two prefixes"):
        make_trainer().train(1, DATA, savers)


def test_a_lone_eval_leaves_training_callbacks_alone(tmp_path):
    """MindSpore's ModelCheckpoint ends in a KeyError there."""
    assert "mse" in make_trainer().eval(DATA, [ModelCheckpoint("net", tmp_path), History()])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (LossMonitor, {"per_print_times": -1}),
        (LossMonitor, {"per_print_times": 1.0}),
        (TimeMonitor, {"data_size": 0}),
        (TimeMonitor, {"data_time": 1}),
        (StopAtTime, {"run_time": 0}),
        (StopAtTime, {"run_time": True}),
        (StopAtTime, {"run_time": "1"}),
        (CheckpointConfig, {"save_checkpoint_steps": 0}),
        (CheckpointConfig, {"save_checkpoint_steps": True}),
        (CheckpointConfig, {"format": "zip"}),
        (CheckpointConfig, {"append_info": ["epoch"]}),
        (CheckpointConfig, {"unknown": 1}),
        (ModelCheckpoint, {"prefix": "a/b"}),
        (ModelCheckpoint, {"config": {}}),
        (ModelCheckpoint, {"directory": " "}),
    ],
)
def test_constructors_refuse_what_cannot_work(kind, arguments):
    with pytest.raises((TypeError, ValueError)):
        kind(**arguments)
