"""Run-ahead as its users meet it: settings, forms, lengths, data, errors, `exact=False`."""

import contextlib
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings, strategies as st

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, StateGone
from railbus.subscribers import Callback, CheckpointConfig, LambdaCallback, ModelCheckpoint
from railbus.trainer import ArrayDataset, RunAhead, Trainer
from railbus.trainer.runahead import Pace

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)).astype(np.float32)
Y = RNG.normal(size=(80, 1)).astype(np.float32)


class Linear:
    def init(self, rng, inputs):
        return {"w": jnp.full((3, 1), 0.5, jnp.float32)}

    def apply(self, params, inputs):
        return inputs @ params["w"]


def mse(outputs, labels):
    return jnp.square(outputs - labels).mean()


def make(network: Any = None, loss_fn: Any = mse, **run_ahead: Any) -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    return Trainer(
        network or Linear(), loss_fn, optimizer, {"loss"}, run_ahead=RunAhead(**run_ahead)
    )


def data(**kwargs: Any) -> ArrayDataset:
    return ArrayDataset(X, Y, batch_size=4, **kwargs)


class Losses(Callback):
    """Keeps the losses, and does something at each step."""

    def __init__(self, act=None) -> None:
        self.act, self.seen = act, []

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.seen.append(float(params.net_outputs))
        if self.act:
            self.act(run_context, params.cur_step_num)


# Settings


@pytest.mark.parametrize(
    ("given_", "error", "says"),
    [
        ({"block_steps": 0}, ArgumentError, "block_steps must be at least 1, got 0"),
        ({"block_steps": 1.5}, ArgumentTypeError, "block_steps must be an int"),
        ({"ahead": -1}, ArgumentError, "ahead must be at least 0"),
        ({"memory": "1 GB"}, ArgumentTypeError, "memory must be an int"),
        ({"fuse": "always"}, ArgumentError, "fuse must be True, False or 'auto', got 'always'"),
        ({"exact": 1}, ArgumentTypeError, "exact"),
    ],
)
def test_settings_that_cannot_work_are_refused(given_, error, says):
    with pytest.raises(error, match=says):
        RunAhead(**given_)


def test_a_trainer_takes_a_run_ahead_only():
    wrong: Any = 3

    with pytest.raises(ArgumentTypeError, match="run_ahead must be a RunAhead, .*got 3"):
        Trainer(Linear(), mse, optax.sgd(0.1), run_ahead=wrong)


def test_off_gives_one_block_per_step_and_nothing_ahead():
    trainer = make()
    trainer.run_ahead = RunAhead.off()

    stats = trainer.train(1, data()).stats

    assert (stats.steps, stats.blocks, stats.rollbacks) == (20, 20, 0)


# The form of a block


class Convolves(nnx.Module):
    def __init__(self) -> None:
        self.conv = nnx.Conv(1, 2, (3, 3), rngs=nnx.Rngs(0))
        self.out = nnx.Linear(3 * 2, 1, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.out(self.conv(x[:, None, :, None]).reshape(x.shape[0], -1))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the rule is about CPUs")
def test_convolutions_are_dispatched_on_cpu_and_matrix_products_fused():
    network = make(Convolves()).train(1, data()).stats
    plain = make().train(1, data()).stats

    assert (network.fused, network.form) == (False, "convolutions in a loop are slow on CPU")
    assert (plain.fused, plain.form) == (True, "one program per block")


@pytest.mark.parametrize("fuse", [True, False])
def test_the_form_can_be_fixed_by_hand(fuse):
    stats = make(fuse=fuse).train(1, data()).stats

    assert (stats.fused, stats.form) == (fuse, "asked for")


class Drifts(Linear):
    """Its parameters become larger in type with the first step."""

    def init(self, rng, inputs):
        return {"w": jnp.full((3, 1), 0.5, jnp.bfloat16)}

    def apply(self, params, inputs):
        return inputs @ params["w"].astype(jnp.float32)


def test_a_step_that_cannot_be_looped_is_dispatched_or_refused():
    widen = optax.GradientTransformation(
        lambda params: jnp.zeros((), jnp.int32),
        lambda grads, state, params=None: (grads, state.astype(jnp.float32)),
    )
    trainer = Trainer(Linear(), mse, widen)
    forced = Trainer(Linear(), mse, widen, run_ahead=RunAhead(fuse=True))

    stats = trainer.train(1, data()).stats

    assert not stats.fused
    assert "from int32[] to float32[]" in stats.form
    with pytest.raises(ArgumentError, match="fuse=True cannot work: a step changes"):
        forced.train(1, data())


# The length of a block


def pace(state_bytes: int = 0, batch_bytes: int = 1, **kwargs: Any) -> Pace:
    return Pace(RunAhead(**{"memory": 10**9, **kwargs}), state_bytes, batch_bytes)


def grown(one: Pace, blocks: int = 30, seconds: float = 0.001) -> Pace:
    for _ in range(blocks):
        one.took("train", one.length("train"), seconds * one.length("train"))
        one.committed("train")
    return one


def test_a_block_grows_to_what_takes_fifty_milliseconds():
    one = pace()
    lengths = []
    for _ in range(8):
        lengths.append(one.length("train"))
        grown(one, 1)

    assert lengths == [1, 2, 4, 8, 16, 32, 50, 50]
    assert one.ahead == 2


def test_a_change_that_wastes_steps_begins_anew_without_anything_ahead():
    one = grown(pace())

    one.rolled_back(120)

    assert (one.length("train"), one.ahead) == (1, 0)
    assert (grown(one, 3).length("train"), one.ahead) == (8, 0)
    assert (grown(one, 3).length("train"), one.ahead) == (50, 0)
    assert [grown(one, 1).ahead for _ in range(3)] == [1, 2, 2]


def test_a_change_that_wastes_nothing_leaves_the_length():
    one = grown(pace())

    one.rolled_back(0)

    assert (one.length("train"), one.ahead) == (50, 2)


@pytest.mark.parametrize(
    ("memory", "ahead", "length"),
    [(0, 0, 1), (100, 0, 50), (150, 1, 25), (230, 2, 10), (500, 2, 50)],
)
def test_memory_shortens_the_blocks_and_then_takes_those_ahead(memory, ahead, length):
    one = grown(pace(state_bytes=100, batch_bytes=1, memory=memory))

    assert (one.ahead, one.length("train")) == (ahead, length)
    assert ahead * 100 + (ahead + 1) * length <= max(memory, 1)


@settings(max_examples=40)
@given(changes=st.sets(st.integers(1, 60), max_size=25))
def test_whatever_callbacks_change_the_device_does_at_most_twice_the_work(changes):
    def act(run_context, step):
        if step in changes:
            run_context.original_args().learning_rate = 0.1 / step

    stats = TWICE.train(3, data(), Losses(act)).stats

    assert stats.steps_dropped + stats.steps_again <= stats.steps + 3 * 60


TWICE = make()


def test_a_schedule_that_sets_the_rate_at_every_step_gets_lockstep():
    def act(run_context, step):
        run_context.original_args().learning_rate = 0.1 / step

    stats = make().train(20, data(), Losses(act)).stats

    assert stats.rollbacks <= 3
    assert stats.steps_dropped + stats.steps_again <= 60
    assert stats.blocks >= 390


def test_blocks_end_where_a_callback_needs_the_state(tmp_path):
    config = CheckpointConfig(save_checkpoint_steps=7, keep_checkpoint_max=0)
    saves = ModelCheckpoint(directory=tmp_path, config=config)

    stats = make().train(3, data(), saves).stats

    assert len(list(tmp_path.iterdir())) == 60 // 7 + 1
    assert (stats.rollbacks, stats.steps_again) == (0, 0)


@pytest.mark.parametrize(
    ("needs", "error", "says"),
    [
        ({"net_outputs": 5}, ArgumentError, "Losses.needs takes 'train_network' and 'optimizer'"),
        ({"train_network": 0}, ArgumentError, "must be at least 1, got 0"),
        (("train_network",), ArgumentTypeError, "Losses.needs must be a dict"),
    ],
)
def test_needs_that_cannot_be_met_are_refused(needs, error, says):
    callback = Losses()
    callback.needs = needs

    with pytest.raises(error, match=says):
        make().train(1, data(), callback)


def test_a_dataset_that_is_told_its_epoch_is_not_read_into_the_next_one():
    class Told:
        epoch = 1

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([(X[:4] * self.epoch, Y[:4])] * 3)

    told, rows = Told(), []

    def tell(run_context):
        told.set_epoch(run_context.original_args().cur_epoch_num)

    def look(run_context):
        rows.append(run_context.original_args().train_dataset_element[0][0, 0] / X[0, 0])

    make().train(3, told, LambdaCallback(on_train_epoch_begin=tell, on_train_step_end=look))

    assert np.allclose(rows, [1, 1, 1, 2, 2, 2, 3, 3, 3])


def test_after_a_change_between_epochs_the_next_epoch_waits_for_the_callbacks():
    def lower(run_context):
        run_context.original_args().learning_rate *= 0.5

    stats = make(block_steps=20).train(6, data(), LambdaCallback(on_train_epoch_end=lower)).stats

    assert stats.rollbacks == 1
    assert stats.steps == 120


# Data on the device


def test_data_on_the_device_gives_the_same_run_bit_for_bit():
    found = []
    for sink in (False, True):
        trainer, losses = make(), Losses()
        result = trainer.fit(
            3, data(shuffle=True), data(), 1, losses, sink, valid_dataset_sink_mode=sink
        )
        found.append((losses.seen, np.asarray(trainer.params["w"]).tobytes(), result.metrics))

    assert found[0] == found[1]


def test_one_trainer_takes_its_data_from_the_host_and_from_the_device():
    found = []
    for sinks in ([False] * 3, [False, True, False]):
        trainer = make(fuse=True)
        for sink in sinks:
            assert trainer.train(1, data(), dataset_sink_mode=sink).status == "completed"
        found.append(np.asarray(trainer.params["w"]).tobytes())

    assert found[0] == found[1]


def test_a_batch_on_the_device_shows_its_rows_to_who_looks():
    rows, sunk = [], []

    def look(run_context):
        params = run_context.original_args()
        rows.append(params.train_dataset_element[0])
        sunk.append((params.dataset_sink_mode, len(params.train_dataset_element)))

    make().train(1, data(), LambdaCallback(on_train_step_begin=look), dataset_sink_mode=True)

    assert np.array_equal(np.concatenate(rows), X)
    assert set(sunk) == {(True, 2)}


@pytest.mark.parametrize("ahead", [RunAhead(), RunAhead.off(), RunAhead(block_steps=4, ahead=3)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_a_callback_puts_into_what_it_is_shown_changes_no_run(ahead, shuffle):
    inputs, refused = X.copy(), []

    def spoil(run_context):
        params = run_context.original_args()
        params.train_network.params["w"] = None
        params.optimizer.state.hyperparams["learning_rate"] = 0.0
        try:
            params.train_dataset_element[0][:] = 0
        except ValueError:
            refused.append(params.cur_step_num)

    weights = []
    for callbacks in ([], [LambdaCallback(on_train_step_begin=spoil)]):
        trainer = Trainer(Linear(), mse, optax.inject_hyperparams(optax.sgd)(0.1), run_ahead=ahead)
        trainer.train(2, ArrayDataset(inputs, Y, batch_size=4, shuffle=shuffle), callbacks)
        weights.append(np.asarray(trainer.params["w"]).tobytes())

    assert weights[0] == weights[1]
    assert np.array_equal(inputs, X)
    assert refused


@pytest.mark.parametrize(
    ("dataset", "memory", "says"),
    [([(X[:4], Y[:4])], None, "no ArrayDataset"), (data(), 100, "larger than the 100 bytes")],
)
def test_data_that_cannot_lie_on_the_device_is_said_to_stay_on_the_host(
    dataset, memory, says, caplog
):
    with caplog.at_level(logging.INFO, logger="railbus.trainer.setup"):
        assert make(memory=memory).train(1, dataset, dataset_sink_mode=True).status == "completed"

    (record,) = caplog.records
    assert says in record.getMessage()


# Errors inside of a block


class FailsAt(Linear):
    """Its forward pass calls back to the host, which fails where the first input is `at`."""

    def __init__(self, at: float, times: int = 10**9) -> None:
        self.at, self.times = at, times

    def apply(self, params, inputs):
        def check(first):
            if first == np.float32(self.at) and self.times > 0:
                self.times -= 1
                raise ValueError("the host has failed")
            return first

        same = jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), inputs[0, 0])
        return inputs @ params["w"] + 0 * jax.lax.stop_gradient(same)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("block_steps", [1, 6, 20])
def test_a_step_that_fails_inside_a_block_fails_as_that_step(fuse, block_steps):
    losses, wanted = Losses(), Losses()
    make().train(1, data(), wanted)
    trainer = make(FailsAt(X[4 * 9, 0]), fuse=fuse, block_steps=block_steps)

    with pytest.raises(Exception, match="the host has failed"):
        trainer.train(1, data(), losses)

    assert len(losses.seen) == 9
    assert np.allclose(losses.seen, wanted.seen[:9])


def test_where_the_step_that_failed_cannot_be_found_the_error_says_so():
    losses = Losses()
    trainer = make(FailsAt(X[4 * 9, 0], times=1), fuse=True, block_steps=20)

    with pytest.raises(Exception, match="the host has failed") as caught:
        trainer.train(1, data(), losses)

    assert "which step it was is not known" in "".join(caught.value.__notes__)
    assert len(losses.seen) == 19


def test_a_dataset_that_fails_ahead_fails_at_its_own_step():
    def failing():
        for k in range(9):
            yield X[4 * k : 4 * k + 4], Y[4 * k : 4 * k + 4]
        raise OSError("the disk is gone")

    losses = Losses()
    with pytest.raises(OSError, match="disk"):
        make(block_steps=4).train(1, failing(), losses)

    assert len(losses.seen) == 9


@given(
    run_ahead=st.builds(
        RunAhead, block_steps=st.none() | st.integers(1, 6), ahead=st.integers(0, 3)
    ),
    count=st.integers(1, 12),
    ends=st.lists(
        st.tuples(
            st.sampled_from(["on_train_step_begin", "on_train_step_end"]),
            st.integers(1, 12),
            st.sampled_from(["stop", "raise", "change"]),
        ),
        max_size=3,
    ),
)
def test_over_several_runs_no_batch_of_an_iterator_is_lost_or_trained_twice(run_ahead, count, ends):
    iterator = iter([(np.full((4, 3), k, np.float32), Y[:4]) for k in range(count)])
    trained: list[int] = []
    ITERATES.run_ahead = run_ahead

    def once(hook: str, step: int, act: str) -> None:
        def end(run_context):
            params = run_context.original_args()
            if params.cur_step_num == step and act == "raise":
                raise LookupError("ends")
            if params.cur_step_num == step and act == "stop":
                run_context.request_stop()
            elif params.cur_step_num == step:
                params.learning_rate = 0.0

        def keep(run_context):
            trained.append(int(run_context.original_args().train_dataset_element[0][0, 0]))

        hooks = {"on_train_step_end": keep}
        with contextlib.suppress(LookupError):
            ITERATES.train(1, iterator, [LambdaCallback(**{hook: end}), LambdaCallback(**hooks)])

    for hook, step, act in [*ends, ("on_train_begin", 0, "change")]:
        if len(trained) < count:
            once(hook, step, act)

    assert trained == list(range(count))


ITERATES = make()


# Times


def test_steps_of_a_block_have_times_of_their_own_that_never_go_back():
    times = []

    def look(run_context):
        times.append((run_context.event.hook.is_step, run_context.now()))

    hooks = (
        "train_begin train_epoch_begin train_step_begin train_step_end train_epoch_end train_end"
    )
    callback = LambdaCallback(**{f"on_{hook}": look for hook in hooks.split()})
    result = make(block_steps=10).train(2, data(), callback)

    assert [time for _, time in times] == sorted(time for _, time in times)
    assert len({time for is_step, time in times if is_step}) > result.step
    assert times[-1][1] <= result.stats.seconds


# exact=False


def test_without_exactness_a_stop_waits_for_the_steps_on_the_device():
    def act(run_context, step):
        if step == 3:
            run_context.request_stop("enough")

    losses = Losses(act)
    trainer = make(exact=False, block_steps=6, ahead=1)
    result = trainer.train(5, data(), losses)

    assert (result.status, result.step, len(losses.seen)) == ("stopped", 12, 12)
    assert not result.stats.exact
    assert result.stats.rollbacks == 0


def test_without_exactness_a_change_takes_effect_after_the_steps_on_the_device():
    def act(run_context, step):
        if step == 3:
            run_context.original_args().learning_rate = 0.0

    trainer, losses = make(exact=False, block_steps=6, ahead=0), Losses(act)
    reference, wanted = make(), Losses()
    trainer.train(1, data(), losses)
    reference.train(1, [(X[4 * k : 4 * k + 4], Y[4 * k : 4 * k + 4]) for k in range(6)], wanted)

    assert losses.seen[:6] == wanted.seen
    assert np.array_equal(trainer.params["w"], reference.params["w"])


def test_without_exactness_a_value_is_shown_from_its_assignment_on():
    """As C2 says of every key; the first step that uses it is the first that comes after those."""
    shown = []

    def act(run_context, step):
        params = run_context.original_args()
        if step == 3:
            params.learning_rate = 0.0
        shown.append(float(params.learning_rate))

    losses = Losses(act)
    make(exact=False, block_steps=6, ahead=1).train(1, [(X[:4], Y[:4])] * 18, losses)
    moved = [new != old for old, new in zip(losses.seen, losses.seen[1:], strict=False)]

    assert shown == pytest.approx([0.1] * 2 + [0.0] * 16)
    assert moved == [True] * 12 + [False] * 5


def test_without_exactness_a_checkpoint_holds_a_change_that_waited_for_the_steps_before(tmp_path):
    def run(resume=None, save=False):
        def act(run_context, step):
            if step == 3:
                run_context.original_args().learning_rate = 0.01
            if step == 6 and save:
                run_context.save_checkpoint(tmp_path / "cut.ckpt")

        losses, trainer = Losses(act), make(exact=False, block_steps=3, ahead=1)
        losses.needs = {"train_network": 6}
        trainer.train(1, data(), losses, resume=resume)
        return losses.seen[-1], trainer.params["w"]

    loss, params = run(save=True)

    again, resumed = run(resume=tmp_path / "cut.ckpt")
    assert again == loss
    assert np.array_equal(params, resumed)


def test_without_exactness_a_failed_run_leaves_a_change_that_was_committed():
    def act(run_context, step):
        if step == 3:
            run_context.original_args().train_network = {"w": np.zeros((3, 1), np.float32)}
        if step == 4:
            raise LookupError("mine")

    trainer = make(exact=False, block_steps=6)
    with pytest.raises(LookupError):
        trainer.train(1, data(), Losses(act))

    assert not np.asarray(trainer.params["w"]).any()


def test_without_exactness_the_state_is_there_where_it_was_declared_and_nowhere_else():
    found: dict[int, Any] = {}

    def act(run_context, step):
        try:
            found[step] = np.asarray(run_context.original_args().train_network.params["w"])
        except StateGone as error:
            found[step] = str(error)

    losses = Losses(act)
    losses.needs = {"train_network": 10}
    trainer = make(exact=False, block_steps=5)
    before = trainer.params
    trainer.train(1, data(), losses)

    assert before is None
    assert [step for step, value in found.items() if not isinstance(value, str)] == [10, 20]
    assert "needs = {'train_network': 100}" in found[3]
    assert np.array_equal(found[20], trainer.params["w"])


def test_without_exactness_the_values_that_were_handed_in_stay_the_users():
    module = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    before = module.kernel[...]
    trainer = Trainer(module, mse, optax.sgd(0.1), run_ahead=RunAhead(exact=False))

    trainer.train(2, data())

    assert np.isfinite(np.asarray(before)).all()
    assert not np.array_equal(before, module.kernel[...])


# Statistics


def test_the_statistics_say_what_was_done_and_where_the_time_went():
    losses = Losses()
    stats = make().fit(2, data(), data(), callbacks=losses).stats

    assert (stats.steps, stats.eval_steps) == (40, 40)
    assert stats.events == 2 + 2 * (2 + 40 + 4 + 40)
    assert 4 <= stats.blocks < 80
    assert 0 < stats.device_busy < stats.seconds
    assert stats.device_idle == pytest.approx(stats.seconds - stats.device_busy)
    assert stats.device_waited >= 0 and stats.host_waited >= 0
    assert stats.callbacks["Losses"].events == 40
