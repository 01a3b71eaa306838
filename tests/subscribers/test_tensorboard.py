"""`TensorBoard`, read back with TensorBoard's own reader."""

import sys
import threading
from pathlib import Path

import numpy as np
import optax
import pytest
from flax import nnx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from railbus.subscribers import Callback, TensorBoard
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


def make_trainer() -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.01)
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optimizer, {"mse"})


def read(path: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(path)).Reload()
    return {
        tag: [(one.step, one.value) for one in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


class Keeps(Callback):
    """Changes the learning rate, and keeps each step's loss."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []

    def on_train_step_end(self, run_context) -> None:
        cb_params = run_context.original_args()
        self.losses.append((cb_params.cur_step_num, float(cb_params.net_outputs)))
        if cb_params.cur_step_num == 2:
            cb_params.learning_rate = 0.5


def test_loss_learning_rate_and_validations_are_in_the_file(tmp_path):
    keeps = Keeps()
    result = make_trainer().fit(2, DATA, DATA, callbacks=[TensorBoard(tmp_path / "a/b"), keeps])

    written = read(tmp_path / "a/b")
    assert set(written) == {"train/loss", "train/learning_rate", "eval/mse", "eval/eval_loss"}
    assert written["train/loss"] == keeps.losses
    rates = [value for _, value in written["train/learning_rate"]]
    assert rates == pytest.approx([0.01] * 2 + [0.5] * 6)
    steps, values = zip(*written["eval/mse"], strict=True)
    assert steps == (4, 8)
    assert values == pytest.approx([epoch["mse"] for epoch in result.history])


def test_every_thins_out_steps_and_each_run_has_a_file_of_its_own(tmp_path):
    board, trainer = TensorBoard(tmp_path, every=3), make_trainer()
    for run_id in ("one", "two"):
        trainer.train(2, DATA, board, run_id=run_id)

    files = sorted(tmp_path.iterdir(), key=lambda path: path.suffix)
    assert [path.suffix for path in files] == [".one", ".two"]
    for path in files:
        assert [step for step, _ in read(path)["train/loss"]] == [3, 6]


def test_a_failed_run_has_its_steps_in_the_file_and_leaves_no_thread(tmp_path):
    class Fails(Callback):
        def on_train_step_begin(self, run_context) -> None:
            if run_context.original_args().cur_step_num == 3:
                raise ValueError("bad luck")

    before = threading.active_count()
    with pytest.raises(ValueError, match="bad luck"):
        make_trainer().train(1, DATA, [TensorBoard(tmp_path), Fails()])

    assert [step for step, _ in read(tmp_path)["train/loss"]] == [1, 2]
    assert threading.active_count() == before


def test_a_lone_eval_writes_nothing(tmp_path):
    make_trainer().eval(DATA, TensorBoard(tmp_path))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [{"log_dir": 3}, {"log_dir": " "}, {"every": 0}, {"every": True}, {"freq": 1}]
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        TensorBoard(**{"log_dir": "runs", **arguments})


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)

    with pytest.raises(ValueError, match=r"pip install 'railbus\[tensorboard\]'"):
        TensorBoard("runs")
