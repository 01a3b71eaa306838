"""`TerminateOnNaN`: the first NaN or Inf in any float output stops the run."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, TerminateOnNaN
from railbus.trainer import Trainer

from .scripted import DATA, make_trainer


class Ends(Callback):
    ended = False

    def on_train_end(self, run_context):
        self.ended = True


def trainer_whose(loss_fn) -> Trainer:
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.0))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_first_wrong_loss_stops_the_run_with_epoch_and_step(wrong):
    """MindSpore's LossMonitor raises there, so that `on_train_end` of the others never runs."""
    ends = Ends()
    data = [*DATA[:2], (DATA[2][0], np.full((2, 1), wrong, np.float32)), DATA[3]]

    result = make_trainer().train(3, data, [TerminateOnNaN(), ends])

    assert (result.status, result.step, result.by) == ("stopped", 3, "TerminateOnNaN")
    assert result.reason == "epoch 1 step 3: an output is NaN or Inf"
    assert ends.ended


def test_what_comes_with_the_loss_counts_where_kerass_looks_at_the_loss_only():
    def loss_fn(out, y):
        aux = {"count": jnp.int32(1), "deep": [jnp.log(out.mean() * 0.0 - 1.0)]}
        return (out - y).mean(), aux

    assert trainer_whose(loss_fn).train(3, DATA, TerminateOnNaN()).step == 1


def test_finite_outputs_of_any_type_go_on():
    def loss_fn(out, y):
        return (out - y).mean(), (jnp.int32(3), jnp.array(True), out.astype(jnp.bfloat16))

    assert trainer_whose(loss_fn).train(2, DATA, TerminateOnNaN()).status == "completed"


def test_a_lone_eval_leaves_it_alone():
    data = [(DATA[0][0], np.full((2, 1), np.nan, np.float32))]

    assert np.isnan(make_trainer().eval(data, TerminateOnNaN())["mse"])


def test_it_takes_no_arguments():
    with pytest.raises(TypeError):
        TerminateOnNaN(True)  # type: ignore[call-arg]  # refused on purpose
