"""A run that was recorded: real training with a stop, a patch, own keys and a NaN."""

from pathlib import Path

import msgspec
import numpy as np

from railbus.bus import Recording
from railbus.bus.tape import Tape
from railbus.schemas.events import Committed
from railbus.schemas.hooks import Hook
from railbus.subscribers import Callback

from .scripted import DATA, Scripted, make_trainer


class Notes(Callback):
    """Sets keys of its own, halves the learning rate after epoch 1 and stops after epoch 2."""

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        cb_params.tenfold = cb_params.cur_step_num * 10
        if cb_params.cur_step_num == 1:
            cb_params.large = np.arange(1000, dtype=np.float32)
            cb_params.seq = 7
            cb_params.limit = float("nan")

    def on_train_epoch_end(self, run_context):
        cb_params = run_context.original_args()
        if cb_params.cur_epoch_num == 1:
            cb_params.learning_rate = cb_params.learning_rate / 2
            del cb_params.large
        if cb_params.cur_epoch_num == 2:
            run_context.request_stop("two are enough")


class Fails(Callback):
    """Raises at one step; the run goes on without it."""

    on_error = "detach"

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 3:
            raise ValueError("bad luck")


def record(directory: Path) -> Path:
    """Record a run of `fit` with 2 epochs of 4 steps; returns the run's directory."""
    trainer = make_trainer({"accuracy": Scripted([0.25, 0.75, 0.9])})
    callbacks = [Notes(), Fails()]
    result = trainer.fit(3, DATA, DATA, callbacks=callbacks, record=directory)
    return directory / result.run_id


def committed(run: Path, hooks=None, **place) -> list[Committed]:
    """The events of a recording without gaps."""
    return [one for one in Recording(run).entries(hooks, **place) if isinstance(one, Committed)]


def repeat(run: Path, directory: Path, events: int, run_id="long") -> None:
    """A recording of one event of `run`, so many times."""
    about = Recording(run).about
    entry = committed(run, {Hook.TRAIN_STEP_END}, step=2)[0]
    tape = Tape(directory, msgspec.structs.replace(about, run_id=run_id), "lifecycle", {})
    for seq in range(events):
        event = msgspec.structs.replace(entry.event, run_id=run_id, seq=seq)
        tape.write(Committed(event, entry.decision, (), seq, 1))
    tape.seal()
