"""A small trainer whose validations give the results that a test has written down."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from railbus.schemas.codec import pack, unpack
from railbus.subscribers import Callback
from railbus.trainer import RunAhead, RunResult, Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]
RATE = 2.0**-7


class Scripted:
    """A metric that gives `values`, one per validation."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = iter(values)

    def reset(self) -> None:
        pass

    def update(self) -> None:
        pass

    def compute(self) -> Any:
        return next(self._values)


class Pause(Callback):
    """Interrupts the run at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.step:
            run_context.request_stop(interrupts=True)


def make_trainer(metrics=frozenset({"mse"}), run_ahead=None) -> Trainer:
    """Its learning rate is `RATE`, exact in float32, and can be set."""
    return Trainer(
        nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
        lambda outputs, labels: jnp.square(outputs - labels).mean(),
        optax.inject_hyperparams(optax.sgd)(learning_rate=RATE),
        metrics,
        run_ahead=RunAhead() if run_ahead is None else run_ahead,
    )


def fit(callbacks, values: Sequence[Any], name="accuracy") -> RunResult:
    """One epoch for each of `values`, which its validation gives under `name`."""
    trainer = make_trainer({name: Scripted(values)})
    return trainer.fit(len(values), DATA, DATA, callbacks=callbacks)


def carried(state: dict[str, Any]) -> Any:
    """What comes out of a snapshot that `state` goes into."""
    return unpack(pack(state))
