"""A small run whose every event can be compared, and that can be cut anywhere."""

from typing import Any

import numpy as np

from railbus.subscribers import Callback
from railbus.trainer import ArrayDataset, RunAhead, Trainer

from ..semantics.c5 import KINDS, bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(36, 3)).astype(np.float32)
Y = RNG.normal(size=(36, 1)).astype(np.float32)


def make(**run_ahead: Any) -> Trainer:
    """The trainer of these tests as it was in the beginning; it is compiled once."""
    return KINDS["noisy"].reset(RunAhead(**run_ahead))


def data() -> ArrayDataset:
    return ArrayDataset(X, Y, batch_size=8, shuffle=True)


class Watch(Callback):
    """Notes every event; saves after a step, or in another hook, and may stop there.

    Args:
        stop: "end", or "interrupt".
    """

    def __init__(self, hook: str = "", number: int = 0, path: Any = "", stop: Any = None) -> None:
        self.hook, self.number, self.path, self.stop = hook, number, path, stop
        self.seen: list[Any] = []
        self.steps = 0

    def on_train_begin(self, run_context):
        self.steps = 0
        self.note(run_context)

    def on_train_epoch_begin(self, run_context):
        self.note(run_context)

    def on_train_step_begin(self, run_context):
        self.note(run_context)

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.steps += 1
        params.own = self.steps
        if params.cur_step_num % 4 == 0:
            params.learning_rate = params.learning_rate * 0.9
        self.note(run_context)

    def on_eval_end(self, run_context):
        self.note(run_context)

    def on_train_epoch_end(self, run_context):
        self.note(run_context)

    def on_train_end(self, run_context):
        self.note(run_context)

    def note(self, run_context):
        params, hook = run_context.original_args(), run_context.event.hook.value
        where = (hook, params.get("cur_epoch_num"), params.cur_step_num, params.cur_batch_num)
        outputs = params.get("net_outputs")
        loss = None if isinstance(outputs, tuple) or outputs is None else float(outputs)
        results = str(params.get("eval_results"))
        self.seen.append((*where, params.get("own"), loss, float(params.learning_rate), results))
        if (hook, params.cur_step_num) == (self.hook, self.number) and params.mode == "train":
            run_context.save_checkpoint(self.path)
            if self.stop is not None:
                run_context.request_stop("enough", interrupts=self.stop == "interrupt")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def last(trainer: Trainer) -> list[bytes]:
    """Its state, bit for bit."""
    return bits(trainer._state)
