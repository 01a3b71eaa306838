"""A run that can be killed anywhere: `python resumable.py <folder>` forks one for each line read.

A line asks for one attempt; the attempt goes on from the newest checkpoint in the folder. It writes
a dot for each step and, when it is completed, `result.json`. Forked, since importing JAX takes longer
than the attempt; nothing of JAX has run before the fork.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401  # it would be imported in each attempt
from flax import nnx

from railbus.subscribers import (
    Callback,
    CheckpointConfig,
    EarlyStopping,
    History,
    ModelCheckpoint,
    ReduceLROnPlateau,
)
from railbus.trainer import ArrayDataset, Trainer

EPOCHS = 60
SEED = np.random.default_rng(0)
X = SEED.normal(size=(36, 3)).astype(np.float32)
Y = SEED.normal(size=(36, 1)).astype(np.float32)


class Net(nnx.Module):
    """Statistics and random keys move with each of its steps."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(3, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return self.last(self.dropout(nnx.relu(self.norm(self.first(inputs)))))


class Log(Callback):
    """All losses and learning rates that it has seen, over all attempts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_begin(self, run_context: Any) -> None:
        self.seen = []

    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        loss, rate = np.asarray(params.net_outputs), np.asarray(params.learning_rate)
        self.seen.append(f"{params.cur_step_num} {loss.tobytes().hex()} {rate.tobytes().hex()}")
        params.own = len(self.seen)
        os.write(1, b".")

    def on_train_epoch_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        self.seen.append(f"{params.cur_epoch_num} {params.own} {sorted(params.eval_results)}")

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = list(state["seen"])


def attempt(folder: Path) -> None:
    """One run, from where the last one was interrupted."""
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=jnp.float32(0.01))
    trainer = Trainer(Net(), lambda out, y: jnp.square(out - y).mean(), optimizer, {"mse"})
    log, history = Log(), History()
    plateau = ReduceLROnPlateau(factor=0.5, patience=2, min_delta=0.05)
    stopping = EarlyStopping(patience=1000)
    config = CheckpointConfig(3, keep_checkpoint_max=2, async_save=True)
    data = [ArrayDataset(X, Y, batch_size=8, shuffle=True, seed=seed) for seed in (1, 2)]
    result = trainer.fit(
        EPOCHS, data[0], data[1], 1,
        [log, plateau, ModelCheckpoint("net", folder, config), stopping, history],
        resume="latest", run_id="run",
    )  # fmt: skip
    leaves = jax.tree.leaves(trainer._state)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    plain = [jax.random.key_data(a) if key else a for a, key in zip(leaves, keys, strict=True)]
    found = {
        "status": str(result),
        "state": hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in plain)).hexdigest(),
        "seen": log.seen,
        "history": [history.history, history.epochs],
        "epochs": [dict(one) for one in result.history],
        "callbacks": [plateau.state_dict(), stopping.state_dict()],
    }
    (folder / "result.json").write_text(json.dumps(found, sort_keys=True, default=float))


def main(folder: Path) -> None:
    """Fork an attempt for each line; tell its number."""
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                attempt(folder)
                status = 0
            finally:
                os._exit(status)
        os.write(1, f"<{child}>".encode())
        os.waitpid(child, 0)
        os.write(1, b"!")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
