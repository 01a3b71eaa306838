"""What is saved of a run that fails, and of one at its end: the run as it was, and nothing of later."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railbus.subscribers import Callback
from railbus.trainer import ArrayDataset, RunAhead, Trainer
from railbus.trainer.resume import read_cut

from ..semantics.c5 import KINDS, bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(36, 3)).astype(np.float32)
Y = RNG.normal(size=(36, 1)).astype(np.float32)


PLACES = [  # where it fails, and the last step that was committed: epoch, step in epoch, step
    ("on_train_step_begin", 2, 8, (2, 2, 7)),
    ("on_train_step_end", 2, 8, (2, 2, 7)),
    ("on_train_epoch_begin", 2, 5, (1, 5, 5)),
    ("on_eval_step_end", 2, 2, (2, 5, 10)),
    ("on_eval_end", 2, 5, (2, 5, 10)),
    ("on_train_epoch_end", 2, 10, (2, 5, 10)),
]


def make() -> Trainer:
    return KINDS["noisy"].reset(RunAhead(block_steps=4))


def data() -> ArrayDataset:
    return ArrayDataset(X, Y, batch_size=8, shuffle=True)  # 5 steps an epoch


class Counts(Callback):
    """Counts its events in `cb_params`; shows what is there at the end."""

    def on_train_begin(self, run_context: Any) -> None:
        self.outputs: list[Any] = []

    def on_train_epoch_begin(self, run_context: Any) -> None:
        self.count(run_context)

    def on_train_step_begin(self, run_context: Any) -> None:
        self.outputs.append(np.array(run_context.original_args().get("net_outputs")))

    def on_train_step_end(self, run_context: Any) -> None:
        self.count(run_context)

    def on_train_epoch_end(self, run_context: Any) -> None:
        self.count(run_context)

    def on_train_end(self, run_context: Any) -> None:
        self.counted = run_context.original_args().counted

    def count(self, run_context: Any) -> None:
        params = run_context.original_args()
        params.counted = params.get("counted", 0) + 1


class Fails(Callback):
    """Fails at one event, and saves the run in `on_exception`."""

    def __init__(self, hook: str, epoch: int, step: int, path: Path) -> None:
        self.where, self.path = (epoch, step), path
        self.shown: Any = None
        setattr(self, hook, self.fail)

    def fail(self, run_context: Any) -> None:
        params = run_context.original_args()
        if (params.cur_epoch_num, params.cur_step_num) == self.where:
            raise RuntimeError("no")

    def on_exception(self, run_context: Any, error: BaseException) -> None:
        params = run_context.original_args()
        self.shown = params.cur_epoch_num, params.cur_batch_num, params.cur_step_num
        run_context.save_checkpoint(self.path)


class Unsized:
    """Batches whose number is not known before they were read."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


@pytest.fixture(scope="module")
def whole() -> Any:
    trainer, counts = make(), Counts()
    result = trainer.fit(3, data(), data(), 1, counts)
    return bits(trainer._state), result, counts


@pytest.mark.parametrize(("hook", "epoch", "step", "committed"), PLACES)
def test_a_run_that_failed_is_saved_without_the_event_that_failed(
    tmp_path, whole, hook, epoch, step, committed
):
    """What callbacks had assigned there, its loss, outputs and epoch record were saved with it."""
    path = tmp_path / "cut.ckpt"
    fails = Fails(hook, epoch, step, path)
    with pytest.raises(RuntimeError, match="no"):
        make().fit(3, data(), data(), 1, [Counts(), fails])
    trainer, counts = make(), Counts()
    result = trainer.fit(3, data(), data(), 1, counts, resume=path)

    state, uninterrupted, counted = whole
    assert fails.shown == committed
    assert bits(trainer._state) == state
    assert result.history == uninterrupted.history
    assert counts.counted == counted.counted
    assert counts.outputs == counted.outputs[committed[2] :]


def test_a_failed_validation_does_not_change_how_long_an_epoch_is(tmp_path):
    """Its own number of batches was saved as that of training."""
    path = tmp_path / "cut.ckpt"
    batches = [(X[k : k + 8], Y[k : k + 8]) for k in range(0, 32, 8)]
    with pytest.raises(RuntimeError, match="no"):
        make().fit(3, Unsized(batches), batches[:2], 1, Fails("on_eval_step_end", 2, 1, path))

    assert read_cut(path).batch_num == 4


def test_a_run_that_fails_before_it_goes_on_is_not_saved(tmp_path):
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    with pytest.raises(RuntimeError, match="no"):
        make().train(3, data(), Fails("on_train_step_end", 2, 8, first))
    with pytest.raises(RuntimeError, match="no"):
        make().train(3, data(), Fails("on_train_epoch_begin", 2, 7, second), resume=first)

    assert first.exists()
    assert not second.exists()
