"""Bad input is one clear error before anything is entered or compiled."""

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas import RailbusError
from railbus.subscribers import Callback
from railbus.trainer import ArrayDataset, Trainer

X, Y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
GOOD = [(X[:4], Y[:4]), (X[4:], Y[4:])]


class Entered(Callback):
    """Must not be."""

    def __enter__(self):
        raise AssertionError("a callback was entered")


class Legacy(Callback):
    def step_end(self, run_context):
        pass


class Inherits(Legacy):
    pass


def make_trainer(**changes) -> Trainer:
    arguments = {
        "loss_fn": lambda out, y: ((out - y) ** 2).mean(),
        "optimizer": optax.sgd(0.1),
        "metrics": {"loss"},
    } | changes
    return Trainer(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), **arguments)


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda t: t.train(0, GOOD, [Entered()]), ValueError, "epoch must be at least 1, got 0"),
        (lambda t: t.train(True, GOOD, [Entered()]), TypeError, "epoch must be an int"),
        (lambda t: t.train(2, GOOD, [Entered()], initial_epoch=2), ValueError, "below epoch"),
        (lambda t: t.train(1, [], [Entered()]), ValueError, "train_dataset"),
        (lambda t: t.train(1, 7, [Entered()]), ValueError, "train_dataset"),
        (lambda t: t.train(1, (X, Y), [Entered()]), ValueError, "ArrayDataset"),
        (lambda t: t.train(1, [X], [Entered()]), ValueError, "train_dataset"),
        (lambda t: t.train(1, [(X,)], [Entered()]), ValueError, "inputs and, last, labels"),
        (lambda t: t.train(1, [("a", "b")], [Entered()]), ValueError, "train_dataset"),
        (lambda t: t.train(2, iter(GOOD), [Entered()]), ValueError, "train_dataset"),
        (lambda t: t.fit(1, GOOD, [], callbacks=[Entered()]), ValueError, "valid_dataset"),
        (lambda t: t.fit(1, GOOD, GOOD, 0, [Entered()]), ValueError, "valid_frequency"),
        (lambda t: t.fit(1, GOOD, GOOD, 1.5, [Entered()]), TypeError, "valid_frequency"),
        (lambda t: t.fit(1, GOOD, GOOD, [1, 0], [Entered()]), ValueError, "valid_frequency"),
        (lambda t: t.train(1, GOOD, [Entered(), print]), TypeError, r"callbacks\[1\] must be a C"),
        (lambda t: t.train(1, GOOD, [Entered]), TypeError, "make an instance"),
        (lambda t: t.fit(1, GOOD, callbacks=[Entered(), Legacy()]), ValueError, "step_end"),
        (lambda t: t.fit(1, GOOD, callbacks=(Entered(), Inherits())), ValueError, "step_end"),
        (lambda t: t.train(1, GOOD, [Entered()], run_id="../x"), ValueError, "run_id"),
        (lambda t: t.eval([], [Entered()]), ValueError, "valid_dataset"),
    ],
)
def test_a_run_that_cannot_work_is_refused(call, kind, says):
    trainer = make_trainer()

    with pytest.raises(kind, match=says) as caught:
        call(trainer)

    assert isinstance(caught.value, RailbusError)
    assert trainer._program._compiled == {}
    assert trainer.bus.runs == {}


def test_what_a_trainer_lacks_is_said():
    with pytest.raises(ValueError, match="needs metrics"):
        make_trainer(metrics=None).fit(1, GOOD, GOOD)
    with pytest.raises(ValueError, match="needs metrics"):
        make_trainer(metrics=None).eval(GOOD)
    with pytest.raises(ValueError, match="needs an optimizer"):
        make_trainer(optimizer=None).train(1, GOOD)
    with pytest.raises(ValueError, match="accuracy"):
        make_trainer(metrics={"acuracy"})
    with pytest.raises(TypeError, match="init and apply|init"):
        Trainer(lambda x: x)
    with pytest.raises(TypeError, match="optax"):
        make_trainer(optimizer="sgd")


def test_shapes_that_change_between_batches_are_refused_when_they_come():
    seen = []

    class Counts(Callback):
        def on_train_step_end(self, run_context):
            seen.append(run_context.original_args().cur_step_num)

        def on_exception(self, run_context, error):
            seen.append(type(error).__name__)

    wrong = [*GOOD, (np.ones((4, 5), np.float32), Y[:4])]

    with pytest.raises(ValueError, match="train_dataset"):
        make_trainer().train(1, wrong, [Counts()])

    assert seen == [1, 2, "DatasetError"]


def test_a_partial_last_batch_works():
    data = ArrayDataset(X, Y, batch_size=5)

    assert make_trainer().train(2, data).step == 4
