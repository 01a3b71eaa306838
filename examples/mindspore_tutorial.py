"""The callbacks of MindSpore's tutorials as they are written there, imports apart."""

import argparse
import time
from pathlib import Path

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from railbus.subscribers import Callback
from railbus.trainer import ArrayDataset, Trainer, save_checkpoint


class Print_info(Callback):
    def step_end(self, run_context):
        cb_params = run_context.original_args()
        print(
            "epoch: ",
            cb_params.cur_epoch_num,
            " step: ",
            cb_params.cur_step_num,
            " loss: ",
            cb_params.net_outputs,
        )


class StopTimeMonitor(Callback):
    def __init__(self, run_time):
        super(StopTimeMonitor, self).__init__()
        self.run_time = run_time

    def on_train_begin(self, run_context):
        cb_params = run_context.original_args()
        cb_params.init_time = time.time()
        print(f"Begin training, time is: {cb_params.init_time}")

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        epoch_num = cb_params.cur_epoch_num
        step_num = cb_params.cur_step_num
        loss = cb_params.net_outputs
        cur_time = time.time()
        if (cur_time - cb_params.init_time) > self.run_time:
            print(
                f"End training, time: {cur_time}, epoch: {epoch_num}, step: {step_num}, loss: {loss}"
            )
            run_context.request_stop()


class SaveCkptMonitor(Callback):
    def __init__(self, loss, directory):
        super(SaveCkptMonitor, self).__init__()
        self.loss = loss
        self.directory = directory

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        cur_loss = cb_params.net_outputs.asnumpy()
        if cur_loss < self.loss:
            file_name = f"{self.directory}/{cb_params.cur_epoch_num}_{cb_params.cur_step_num}.ckpt"
            save_checkpoint(save_obj=cb_params.train_network, ckpt_file_name=file_name)
            print(
                f"Saved checkpoint, loss:{cur_loss:8.7f}, current step num:{cb_params.cur_step_num:4}."
            )
            run_context.request_stop()


def main() -> None:
    """Train with each of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("runs/tutorial"))
    parser.add_argument("--seconds", type=float, default=4.0, help="for StopTimeMonitor")
    arguments = parser.parse_args()
    pixels, labels = load_digits(return_X_y=True)
    data = ArrayDataset(
        (pixels / 16).astype(np.float32), labels.astype(np.int32), batch_size=64, shuffle=True
    )
    for callback, epochs in (
        (Print_info(), 1),
        (SaveCkptMonitor(1.0, arguments.directory), 100),
        (StopTimeMonitor(arguments.seconds), 10**6),
    ):
        trainer = Trainer(
            nnx.Linear(64, 10, rngs=nnx.Rngs(0)),
            lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(),
            optax.sgd(0.5),
        )
        print(trainer.train(epochs, data, callbacks=[callback]))


if __name__ == "__main__":
    main()
