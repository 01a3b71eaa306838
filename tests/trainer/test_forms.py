"""The two forms of a trainer's call take the same arguments."""

import inspect
from typing import Any

import anyio
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import LambdaCallback
from railbus.trainer import ArrayDataset, Trainer

X, Y = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)


def make_trainer() -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.01), {"mse"})


def data() -> ArrayDataset:
    return ArrayDataset(X, Y, batch_size=2)


@pytest.mark.parametrize("name", ["train", "fit", "eval"])
def test_both_forms_take_the_same_and_say_what_they_give(name):
    waits, beside = getattr(Trainer, name), getattr(Trainer, f"start_{name}")
    one, two = inspect.signature(waits), inspect.signature(beside)

    assert one.parameters == two.parameters
    assert (one.return_annotation, two.return_annotation) != (inspect.Signature.empty,) * 2
    assert (waits.__qualname__, beside.__name__) == (f"Trainer.{name}", f"start_{name}")
    assert waits.__doc__ and f"`{name}` beside the caller" in beside.__doc__


async def test_a_run_beside_the_caller_takes_a_data_set_that_lies_on_the_device():
    sinks: list[Any] = []
    keeps = LambdaCallback(
        on_train_begin=lambda run: sinks.append(run.original_args().dataset_sink_mode),
        on_eval_begin=lambda run: sinks.append(run.original_args().dataset_sink_mode),
    )
    with anyio.fail_after(60):
        async with make_trainer().start_fit(
            2, data(), data(), 2, keeps, dataset_sink_mode=True, valid_dataset_sink_mode=True
        ) as fit:
            pass
        async with make_trainer().start_train(2, data(), keeps, True, 5, 1) as train:
            pass
        async with make_trainer().start_eval(data(), keeps, True) as evaluation:
            pass
        results = [await one.wait() for one in (fit, train, evaluation)]

    assert sinks == [True] * 4
    assert [one.step for one in results] == [4, 2, 0]
    assert results[2].metrics.keys() == {"mse"}


def test_a_wrong_argument_is_an_error_of_the_call_itself():
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        make_trainer().train(epochs=1, train_dataset=data())  # type: ignore[call-arg]
