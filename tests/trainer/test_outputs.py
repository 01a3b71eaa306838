"""What callbacks and snapshots get of a step's outputs, whatever the form of its block."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from railbus.schemas.codec import Reference
from railbus.schemas.errors import ArgumentTypeError
from railbus.schemas.tensor import Tensor
from railbus.subscribers import Callback
from railbus.trainer import RunAhead, Trainer
from railbus.trainer.outputs import ArrayHandle, columns

X = np.arange(20, dtype=np.float32).reshape(10, 2)
DATA = [(X[k : k + 2], X[k : k + 2, :1]) for k in range(0, 10, 2)]
FORMS = [RunAhead.off(), RunAhead(fuse=True, block_steps=5), RunAhead(fuse=False, block_steps=5)]


class Network:
    def init(self, rng, inputs):
        return {"w": jnp.full((2, 1), 0.5, jnp.float32)}

    def apply(self, params, inputs):
        return inputs @ params["w"]


def loss_fn(outputs, labels):
    wide = jnp.broadcast_to(outputs[0, 0], (200, 100))
    return jnp.mean(outputs - labels), {"outputs": outputs, "pair": [outputs.sum(), wide]}


class Keep(Callback):
    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.snapshots: list[Any] = []

    def on_train_step_end(self, run_context):
        self.outputs.append(run_context.original_args().net_outputs)
        self.snapshots.append(run_context.event.cb_params.net_outputs)

    on_eval_step_end = on_train_step_end


@pytest.mark.parametrize("run_ahead", FORMS)
def test_small_outputs_are_values_and_large_ones_handles(run_ahead):
    keep = Keep()
    Trainer(Network(), loss_fn, optax.sgd(0.0), run_ahead=run_ahead).train(1, DATA, keep)

    for (loss, aux), snapshot, (inputs, labels) in zip(
        keep.outputs, keep.snapshots, DATA, strict=True
    ):
        outputs = inputs @ np.full((2, 1), 0.5, np.float32)
        total, wide = aux["pair"]
        assert isinstance(loss, Tensor) and isinstance(wide, ArrayHandle)
        assert float(loss) == pytest.approx(float((outputs - labels).mean()))
        assert np.allclose(aux["outputs"], outputs) and np.allclose(total, outputs.sum())
        assert np.array_equal(wide.asnumpy(), np.full((200, 100), outputs[0, 0]))
        assert not aux["outputs"].flags.writeable
        reference = Reference(kind="array", type="ndarray", summary="float32[200, 100]", id="")
        assert snapshot[1]["pair"][1] == reference
        assert np.array_equal(snapshot[1]["outputs"], aux["outputs"])


@pytest.mark.parametrize("run_ahead", FORMS)
def test_an_evaluation_shows_loss_outputs_and_labels(run_ahead):
    keep = Keep()
    trainer = Trainer(
        Network(), lambda o, y: jnp.square(o - y), optax.sgd(0.0), {"loss"}, run_ahead=run_ahead
    )
    trainer.eval(DATA, keep)

    assert len(keep.outputs) == 5
    for (loss, outputs, labels), (inputs, wanted) in zip(keep.outputs, DATA, strict=True):
        assert np.array_equal(labels, wanted) and labels.shape == (2, 1)
        assert np.allclose(outputs, inputs @ np.full((2, 1), 0.5, np.float32))
        assert float(loss) == pytest.approx(float(np.square(outputs.asnumpy() - wanted).mean()))


def test_outputs_of_another_kind_are_refused():
    with pytest.raises(ArgumentTypeError, match="tuples, lists and dicts, got object"):
        columns((object(),), 1)
