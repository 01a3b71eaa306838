"""Where running ahead could be seen, lose something or keep too much: each was once a defect."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback

from railbus.subscribers import Callback, LambdaCallback
from railbus.trainer import ArrayDataset, RunAhead, Trainer
from railbus.trainer.batches import BatchSource
from railbus.trainer.runahead import Pace

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)).astype(np.float32)
Y = RNG.normal(size=(80, 1)).astype(np.float32)
AHEAD = [RunAhead.off(), RunAhead(), RunAhead(block_steps=8, ahead=2)]
everywhere = pytest.mark.parametrize("ahead", AHEAD, ids=["off", "default", "eight"])


class Linear:
    def init(self, rng, inputs):
        return {"w": jnp.full((3, 1), 0.5, jnp.float32)}

    def apply(self, params, inputs):
        return inputs @ params["w"]


def mse(outputs, labels):
    return jnp.square(outputs - labels).mean()


def make(ahead: RunAhead, loss_fn: Any = mse, network: Any = None) -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    return Trainer(network or Linear(), loss_fn, optimizer, {"loss"}, run_ahead=ahead)


def weights(trainer: Trainer) -> bytes:
    return np.asarray(trainer.params["w"]).tobytes()


def data(**kwargs: Any) -> ArrayDataset:
    return ArrayDataset(X, Y, batch_size=4, **kwargs)


class Steps(Callback):
    def __init__(self) -> None:
        self.done = 0

    def on_train_step_end(self, run_context):
        self.done += 1


@everywhere
def test_an_array_that_fails_in_the_middle_of_an_epoch_fails_the_run_there(ahead):
    class Flaky:
        shape, dtype = X.shape, X.dtype

        def __len__(self):
            return len(X)

        def __getitem__(self, rows):
            if rows.start == 40:
                raise OSError("disk")
            return X[rows]

    steps = Steps()
    with pytest.raises(OSError, match="disk"):
        make(ahead).train(1, ArrayDataset(Flaky(), Y, batch_size=4), steps)

    assert steps.done == 10


@pytest.mark.parametrize("what", ["change", "stop"])
def test_the_error_of_a_step_that_never_came_is_nobodys(what):
    def too_large(value):
        if value > 8:
            raise ValueError("too large")
        return np.asarray(value)

    class Growing(Linear):
        def apply(self, params, inputs):
            size = jax.lax.stop_gradient(jnp.abs(params["w"]).max())
            shape = jax.ShapeDtypeStruct(size.shape, size.dtype)
            return inputs @ params["w"] + 0 * jax.pure_callback(too_large, shape, size)

    def act(run_context):
        if run_context.original_args().cur_step_num == 2:
            if what == "stop":
                run_context.request_stop()
            else:
                run_context.original_args().learning_rate = 0.0

    def run(ahead):
        trainer = make(ahead, lambda outputs, labels: -6 * outputs.sum(), Growing())
        ones = ArrayDataset(np.ones((80, 3), np.float32), Y, batch_size=4)
        return trainer.fit(1, ones, ones, 1, LambdaCallback(on_train_step_end=act)).status

    assert run(RunAhead(block_steps=10, fuse=True)) == run(RunAhead(block_steps=1, ahead=0))


@everywhere
def test_a_loader_that_reuses_its_memory_is_trained_on_as_it_was_read(ahead):
    class Reuses:
        def __iter__(self):
            x, y = np.empty((4, 3), np.float32), np.empty((4, 1), np.float32)
            for start in range(0, 80, 4):
                x[:], y[:] = X[start : start + 4], Y[start : start + 4]
                yield x, y

    found, wanted = make(ahead), make(ahead)
    found.train(1, Reuses())
    wanted.train(1, data())

    assert weights(found) == weights(wanted)


def test_an_interrupt_while_reading_loses_no_batch():
    class Interrupted:
        def __init__(self):
            self.next, self.raised = 0, False

        def __iter__(self):
            return self

        def __next__(self):
            if self.next == 10 and not self.raised:
                self.raised = True
                raise KeyboardInterrupt
            if self.next == 20:
                raise StopIteration
            self.next += 1
            return np.full((4, 3), self.next, np.float32), Y[:4]

    seen = []
    look = LambdaCallback(
        on_train_step_end=lambda run_context: seen.append(
            int(run_context.original_args().train_dataset_element[0][0, 0])
        )
    )
    trainer, dataset = make(RunAhead(block_steps=8)), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(1, dataset, look)
    trainer.train(1, dataset, look)

    assert seen == list(range(1, 21))


@everywhere
def test_evaluating_the_training_set_in_a_hook_moves_its_order_as_in_lockstep(ahead):
    def run(ahead):
        trainer, dataset = make(ahead), data(shuffle=True)
        act = LambdaCallback(on_train_epoch_end=lambda run_context: trainer.eval(dataset))
        trainer.train(4, dataset, act)
        return weights(trainer), dataset.epoch

    assert run(ahead) == run(RunAhead.off())


@everywhere
def test_an_epoch_that_a_callback_sets_is_the_one_that_is_trained_on(ahead):
    dataset, seen = data(shuffle=True), []

    class Sets(Callback):
        def on_train_epoch_begin(self, run_context):
            dataset.epoch = 7

        def on_train_step_end(self, run_context):
            params = run_context.original_args()
            if params.cur_batch_num == 1:
                seen.append(params.train_dataset_element[0].tobytes())

    make(ahead).train(3, dataset, Sets())

    (first, _), *_ = data(shuffle=True).batches(7)
    assert seen == [first.tobytes()] * 3
    assert dataset.epoch == 8


def test_a_dataset_that_was_only_looked_at_is_where_it_was():
    train, valid = data(shuffle=True), data(shuffle=True)

    make(RunAhead()).fit(1, train, valid, 2)
    with pytest.raises(ValueError, match="empty"):
        make(RunAhead()).fit(1, data(), [])

    assert (train.epoch, valid.epoch) == (1, 0)


@pytest.mark.parametrize("sink", [False, True])
def test_a_subclass_gives_its_own_batches_on_the_device_too(sink):
    class Tenfold(ArrayDataset):
        def __iter__(self):
            return ((x * 10, y) for x, y in super().__iter__())

    seen = []
    look = LambdaCallback(
        on_train_step_end=lambda run_context: seen.append(
            run_context.original_args().train_dataset_element[0].max()
        )
    )
    make(RunAhead()).train(1, Tenfold(X, Y, batch_size=80), look, dataset_sink_mode=sink)

    assert seen == [X.max() * 10]


def test_a_second_run_with_larger_outputs_gets_blocks_of_its_own_length():
    class Whole(Linear):
        def apply(self, params, inputs):
            return inputs * params["w"][:1]

    trainer = make(RunAhead(fuse=True), lambda out, y: (jnp.mean(out), out), Whole())
    for width in (40_000, 10):
        dataset = ArrayDataset(
            np.ones((64, width), np.float32), np.ones(64, np.float32), batch_size=4
        )
        assert trainer.train(1, dataset, dataset_sink_mode=True).status == "completed"


def test_data_that_raises_on_being_closed_costs_neither_the_values_nor_the_trainer():
    class Dataset:
        def __iter__(self):
            try:
                for start in range(0, 80, 4):
                    yield X[start : start + 4], Y[start : start + 4]
            finally:
                raise OSError("close failed")

    trainer = make(RunAhead(block_steps=2))
    stop = LambdaCallback(on_train_step_end=lambda run_context: run_context.request_stop())
    with pytest.raises(OSError, match="close failed"):
        trainer.train(1, Dataset(), stop)

    assert trainer.params is not None
    assert trainer.train(1, data()).status == "completed"


@everywhere
def test_an_epoch_that_cannot_be_opened_fails_the_run(ahead):
    class Dataset:
        epochs = 0

        def __iter__(self):
            self.epochs += 1
            if self.epochs == 2:
                raise OSError("mount gone")
            return iter([(X[:4], Y[:4])] * 3)

    with pytest.raises(OSError, match="mount gone"):
        make(ahead).train(3, Dataset())


@everywhere
def test_a_step_that_acts_on_the_host_is_done_once(ahead):
    counted = []

    class Counting(Linear):
        def apply(self, params, inputs):
            io_callback(lambda: counted.append(1), None)
            return inputs @ params["w"]

    def look(run_context):
        if run_context.original_args().cur_step_num == 3:
            assert run_context.original_args().train_network.params
            run_context.original_args().learning_rate = 0.05

    trainer = make(ahead, network=Counting())
    result = trainer.train(1, data(), LambdaCallback(on_train_step_end=look))
    jax.effects_barrier()

    assert len(counted) == 20
    assert "acts on the host" in result.stats.form


@everywhere
def test_a_sampler_that_callbacks_tell_the_epoch_is_not_read_past_it(ahead):
    class Sampler:
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

    class Loader:
        sampler = Sampler()

        def __iter__(self):
            for _ in range(3):
                yield np.full((4, 3), self.sampler.epoch, np.float32), Y[:4]

    loader, seen = Loader(), []

    class Tells(Callback):
        def on_train_epoch_end(self, run_context):
            params = run_context.original_args()
            seen.append(int(params.train_dataset_element[0][0, 0]))
            loader.sampler.set_epoch(params.cur_epoch_num)

    make(ahead).train(4, loader, Tells())

    assert seen == [0, 1, 2, 3]


def test_what_any_block_costs_does_not_keep_blocks_short():
    pace = Pace(RunAhead(memory=10**9), 0, 1)
    for _ in range(200):
        steps = pace.length("train")
        pace.took("train", steps, 0.03 + 0.0001 * steps)
        pace.committed("train")

    assert 0.8 * 0.05 <= 0.03 + 0.0001 * pace.length("train") <= 1.5 * 0.05


def test_reading_ends_with_the_time_that_it_was_given():
    source = BatchSource((batch for batch in [(X[:4], Y[:4])] * 5), "train_dataset")
    passing = source.open()

    assert len(passing.read(5, seconds=0.0)) == 1
    assert len(passing.read(5)) == 4


def test_nothing_of_a_run_stays_but_its_last_state():
    trainer = make(RunAhead())
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(3):
            trainer.train(1, data(), Steps())
            counts.append(len(jax.live_arrays()))
    finally:
        gc.enable()

    assert counts[0] == counts[1] == counts[2]


def test_an_iterator_that_has_failed_keeps_no_run_in_memory():
    def failing():
        yield X[:4], Y[:4]
        raise OSError("disk")

    gc.collect()
    before, iterators = len(jax.live_arrays()), []
    for _ in range(3):
        iterators.append(failing())
        with pytest.raises(OSError, match="disk"):
            make(RunAhead()).train(1, iterators[-1])
    gc.collect()

    assert len(jax.live_arrays()) == before


def test_without_exactness_parameters_that_a_callback_keeps_stay():
    kept = []

    class Keeps(Callback):
        needs = {"train_network": 10}

        def on_train_step_end(self, run_context):
            params = run_context.original_args()
            if params.cur_step_num == 10:
                kept.append(params.train_network.params["w"])

    make(RunAhead(exact=False, block_steps=5)).train(1, data(), Keeps())

    assert np.isfinite(np.asarray(kept[0])).all()


def test_without_exactness_the_network_can_be_replaced_inside_of_a_block():
    def replace(run_context):
        params = run_context.original_args()
        if params.cur_step_num == 3:
            params.train_network = {"w": jnp.zeros((3, 1))}

    trainer = make(RunAhead(exact=False, block_steps=10))
    result = trainer.train(1, data(), LambdaCallback(on_train_step_end=replace))

    assert result.status == "completed"


def test_statistics_are_there_while_the_run_is_under_way_and_count_who_looked_inside():
    seen = []

    def look(run_context):
        assert run_context.original_args().train_network.params
        seen.append(run_context.original_args().cur_step_num)

    callback = LambdaCallback(on_train_step_end=look)
    stats = make(RunAhead(block_steps=20)).train(1, data(), callback).stats

    assert stats.steps_again == 19
    assert stats.callbacks["LambdaCallback"].events == 20


def test_what_takes_a_callbacks_place_says_what_it_needs():
    class Looks(Callback):
        needs = {"train_network": 5}

    class Stands(Callback):
        def __enter__(self):
            return Looks()

    assert make(RunAhead(block_steps=20)).train(1, data(), Stands()).stats.blocks == 4


def test_plain_numbers_in_an_optimizers_state_become_arrays():
    def init(params):
        return {"n": 0}

    def update(grads, state, params=None):
        return jax.tree.map(lambda g: -0.1 * g, grads), {"n": state["n"] + 1}

    trainer = Trainer(Linear(), mse, optax.GradientTransformation(init, update))

    assert trainer.train(1, data()).status == "completed"
