"""What a step costs, as XLA counts it."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback
from railbus.trainer import ArrayDataset, RunAhead, Trainer

X = np.ones((64, 32), np.float32)
Y = np.zeros((64, 16), np.float32)


class Asks(Callback):
    def on_train_begin(self, run_context):
        self.first = run_context.original_args().train_network.cost

    def on_train_step_end(self, run_context):
        self.later = run_context.original_args().train_network.cost


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_the_cost_of_a_step_is_that_of_its_products_and_a_little_more(sinks, fuse, exact):
    asks, ahead = Asks(), RunAhead(fuse=fuse, exact=exact)
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    network = nnx.Linear(32, 16, rngs=nnx.Rngs(0))
    trainer = Trainer(network, loss_fn, optax.sgd(0.01), run_ahead=ahead)
    trainer.train(1, ArrayDataset(X, Y, batch_size=8), asks, dataset_sink_mode=sinks)

    assert asks.first is asks.later
    products = 2 * 2 * 8 * 32 * 16  # forward, and backward to the kernel
    for flops in (asks.later.model_flops, asks.later.hardware_flops):
        assert products <= flops < 1.5 * products
