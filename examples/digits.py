"""Train a small network on scikit-learn's handwritten digits: the demo of `make demo`."""

import argparse
import sys
from os.path import relpath
from pathlib import Path

import anyio
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from railbus.schemas import Gap
from railbus.subscribers import LossMonitor, ModelCheckpoint, StopAtTime, TimeMonitor
from railbus.trainer import ArrayDataset, Run, RunResult, Trainer, load_checkpoint


class Digits(nnx.Module):
    """8 x 8 pixels in, ten classes out."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, pixels: jnp.ndarray) -> jnp.ndarray:
        return self.out(self.dropout(nnx.relu(self.hidden(pixels))))


def datasets() -> tuple[ArrayDataset, ArrayDataset]:
    """1,437 images to train on, 360 to validate with; the split depends on a seed only."""
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(pixels))
    train, valid = order[:1437], order[1437:]
    return (
        ArrayDataset(pixels[train], labels[train], batch_size=32, shuffle=True),
        ArrayDataset(pixels[valid], labels[valid], batch_size=90),
    )


async def watch(run: Run) -> None:
    """An observer: sees committed events from a task of its own and never slows the run."""
    async for event in run.events({"on_train_epoch_end"}):
        if isinstance(event, Gap):
            continue
        seen = event.cb_params
        line = f"  observer: epoch {seen.cur_epoch_num} ended, {event.time_ns / 1e9:.2f} s\n"
        print(line, end="", flush=True)  # in one piece: the callbacks print from another thread


async def train(directory: Path, epochs: int) -> tuple[RunResult, ModelCheckpoint]:
    """`fit`, recorded, beside an observer on the same event loop."""
    train_dataset, valid_dataset = datasets()
    trainer = Trainer(
        Digits(nnx.Rngs(0)),
        loss_fn=optax.softmax_cross_entropy_with_integer_labels,
        optimizer=optax.adam(2e-3),
        metrics={"accuracy"},
    )
    best = ModelCheckpoint("best", directory, monitor="accuracy", mode="max")
    callbacks = [LossMonitor(45), TimeMonitor(), best, StopAtTime(50)]
    async with (
        trainer.start_fit(
            epochs, train_dataset, valid_dataset, callbacks=callbacks, record=directory
        ) as run,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watch, run)
        result = await run.wait()
    return result, best


def main() -> None:
    """Train, then say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("runs/digits"), help="output")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    result, best = anyio.run(train, arguments.directory, arguments.epochs)
    stats = result.stats
    accuracy = max(epoch["accuracy"] for epoch in result.history)
    arrays = load_checkpoint(best.latest_ckpt_file_name)
    print(f"\n{result}")
    print(f"  best accuracy     {accuracy:.3f}")
    print(f"  steps             {stats.steps} in {stats.seconds:.1f} s, {stats.events} events")
    print(f"  time in callbacks {stats.callback_seconds:.2f} s")
    for name, tally in stats.callbacks.items():
        print(f"    {name:<15} {tally.seconds:.3f} s in {tally.events} events")
    print(f"  best checkpoint   {relpath(best.latest_ckpt_file_name)} ({len(arrays)} arrays)")
    railbus, run = Path(sys.executable).with_name("railbus"), arguments.directory / result.run_id
    print("look at the recorded run:")
    print(f"  {relpath(railbus)} show {relpath(run)}")
    print(f"  {relpath(railbus)} events {relpath(run)} --hook on_train_epoch_end")


if __name__ == "__main__":
    main()
