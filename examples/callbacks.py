"""The tutorials' callbacks written by hand, each beside the built-in one that does the same."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from railbus.subscribers import Callback, ModelCheckpoint, ReduceLROnPlateau, StopAtTime
from railbus.trainer import ArrayDataset, RunResult, Trainer, load_checkpoint, save_checkpoint


class ReduceByHand(Callback):
    """Divides the learning rate by ten after `patience` validations that were no better."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_train_begin(self, run_context: Any) -> None:
        self.best, self.wait = float("inf"), 0

    def on_train_epoch_end(self, run_context: Any) -> None:
        cb_params = run_context.original_args()
        if cb_params.eval_results["eval_loss"] < self.best - 1e-4:
            self.best, self.wait = cb_params.eval_results["eval_loss"], 0
            return
        self.wait += 1
        if self.wait == self.patience:
            cb_params.learning_rate = cb_params.learning_rate * 0.1
            self.wait = 0


class SaveBestByHand(Callback):
    """Keeps the weights of the epoch with the best accuracy in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, run_context: Any) -> None:
        self.best = 0.0

    def on_train_epoch_end(self, run_context: Any) -> None:
        cb_params = run_context.original_args()
        if cb_params.metrics["accuracy"] > self.best:
            self.best = cb_params.metrics["accuracy"]
            save_checkpoint(cb_params.train_network, self.path)


class StopByHand(Callback):
    """Stops at the first step that ends after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.now() >= self.seconds:
            run_context.request_stop(f"{self.seconds:g} s are over")


class LastRate(Callback):
    """Remembers the learning rate at the run's end."""

    rate = 0.0

    def on_train_end(self, run_context: Any) -> None:
        self.rate = float(run_context.original_args().learning_rate)


def fit(epochs: int, callback: Callback) -> tuple[RunResult, float]:
    """A fresh network on the digits, and the learning rate that the run ended with."""
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    trainer = Trainer(
        nnx.Linear(64, 10, rngs=nnx.Rngs(0)),
        loss_fn=optax.softmax_cross_entropy_with_integer_labels,
        optimizer=optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        metrics={"accuracy"},
    )
    last = LastRate()
    result = trainer.fit(
        epochs,
        ArrayDataset(pixels[:1437], labels[:1437], batch_size=32, shuffle=True),
        ArrayDataset(pixels[1437:], labels[1437:], batch_size=90),
        callbacks=[callback, last],
    )
    return result, last.rate


def same(one: Any, other: Any) -> str:
    """Whether two trees of arrays hold the same bits."""
    return "yes" if jax.tree.all(jax.tree.map(np.array_equal, one, other)) else "no"


def main() -> None:
    """Each scenario by hand and built in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="for the runs stopped by time")
    arguments = parser.parse_args()

    print("the learning rate on a plateau")
    for callback in (ReduceByHand(2), ReduceLROnPlateau(patience=2)):
        result, rate = fit(arguments.epochs, callback)
        loss = result.metrics["eval_loss"]
        print(f"  {type(callback).__name__:<18} rate {rate:.0e}, eval_loss {loss:.6f}")

    print("the best epoch by accuracy")
    with tempfile.TemporaryDirectory() as folder:
        by_hand = SaveBestByHand(Path(folder) / "best.safetensors")
        built_in = ModelCheckpoint("best", folder, monitor="accuracy")
        for saver in (by_hand, built_in):
            fit(arguments.epochs, saver)
            print(f"  {type(saver).__name__:<18} accuracy {saver.best:.6f}")
        files = load_checkpoint(by_hand.path), load_checkpoint(built_in.latest_ckpt_file_name)
        print(f"  the same weights   {same(*files)}")

    print("a run's time")
    for callback in (StopByHand(arguments.seconds), StopAtTime(arguments.seconds)):
        result, _ = fit(10**6, callback)
        print(f"  {type(callback).__name__:<18} {result.status}: {result.reason}")


if __name__ == "__main__":
    main()
