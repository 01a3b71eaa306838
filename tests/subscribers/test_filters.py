"""Filters: which events arrive, and that everything else is the callback's own."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.subscribers import (
    Callback,
    CheckpointConfig,
    EarlyStopping,
    ModelCheckpoint,
    between,
    every,
    once,
    when,
)
from railbus.trainer import RunAhead, Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]
WRONG: Any = (Callback, 3)
CLOSING = ["train_begin", "train_end"]


class Heard(Callback):
    def __init__(self):
        self.heard = []

    def note(self, hook, run_context):
        shown = run_context.original_args()
        self.heard.append((hook, shown.get("cur_epoch_num", 0), shown.cur_step_num))

    def at(self, hook):
        return [(epoch, step) for name, epoch, step in self.heard if name == hook]

    def on_train_begin(self, run_context):
        self.note("train_begin", run_context)

    def on_train_end(self, run_context):
        self.note("train_end", run_context)

    def on_train_epoch_begin(self, run_context):
        self.note("epoch_begin", run_context)

    def on_train_epoch_end(self, run_context):
        self.note("epoch_end", run_context)

    def on_train_step_begin(self, run_context):
        self.note("step_begin", run_context)

    def on_train_step_end(self, run_context):
        self.note("step_end", run_context)

    def on_eval_begin(self, run_context):
        self.note("eval_begin", run_context)

    def on_eval_step_end(self, run_context):
        self.note("eval_step_end", run_context)


class Watching(Heard):
    observes = True
    lag = 1


class Awaiting(Callback):
    def __init__(self):
        self.steps = []

    async def on_train_step_end(self, run_context):
        self.steps.append(run_context.original_args().cur_step_num)


def make_trainer(**more) -> Trainer:
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    return Trainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), loss_fn, optax.sgd(0.01), {"mse"}, **more)


def steps(callback, inner, epochs=2, **more):
    make_trainer(**more).train(epochs, DATA, callbacks=callback)
    return [step for _, step in inner.at("step_end")]


@pytest.mark.parametrize("kind", [Heard, Watching])
def test_every_n_steps_thins_out_step_hooks_only(kind):
    inner = kind()

    make_trainer().fit(2, DATA, DATA, callbacks=every(3, inner))

    assert inner.at("step_begin") == inner.at("step_end") == [(1, 3), (2, 6)]
    assert inner.at("eval_step_end") == [(1, 3), (2, 3)]
    assert [len(inner.at(hook)) for hook in ("epoch_begin", "epoch_end", "eval_begin")] == [2] * 3
    assert [len(inner.at(hook)) for hook in CLOSING] == [1, 1]


@pytest.mark.parametrize("kind", [Heard, Watching])
def test_every_n_epochs_leaves_out_the_epoch_and_all_inside(kind):
    inner = kind()

    make_trainer().fit(3, DATA, DATA, callbacks=every(2, inner, "epochs"))

    for hook in ("epoch_begin", "epoch_end", "step_end", "eval_step_end"):
        assert {epoch for epoch, _ in inner.at(hook)} == {2}
    assert len(inner.at("eval_begin")) == 3


def test_a_lone_evaluation_belongs_to_no_epoch_and_is_not_thinned_out():
    inner = Heard()

    make_trainer().eval(DATA, callbacks=between(2, 3, inner, "epochs"))

    assert len(inner.at("eval_step_end")) == 4


def test_between_is_half_open_and_leaves_evaluations_alone():
    inner = Heard()

    make_trainer().fit(2, DATA, DATA, callbacks=between(3, 6, inner))

    assert inner.at("step_end") == [(1, 3), (1, 4), (2, 5)]
    assert len(inner.at("eval_step_end")) == 8


def test_filters_nest_in_any_order():
    assert [steps(make(inner), inner) for make, inner in NESTS] == [[6, 8], [4], [4], [5]]


INNERS = [Heard() for _ in range(4)]
NESTS = [
    (lambda one: every(2, between(5, 9, one)), INNERS[0]),
    (lambda one: once(every(4, one)), INNERS[1]),
    (lambda one: every(4, once(one)), INNERS[2]),
    (lambda one: once(when(lambda c: c.original_args().cur_step_num > 4, one)), INNERS[3]),
]


def test_once_takes_both_ends_of_one_step_and_starts_anew_with_each_run():
    inner = Heard()
    trainer, callback = make_trainer(), once(inner)

    trainer.train(1, DATA, callbacks=callback)
    trainer.train(1, DATA, callbacks=callback)

    assert inner.at("step_begin") == inner.at("step_end") == [(1, 1), (1, 1)]


def test_seconds_are_those_of_the_runs_clock():
    never, always = Heard(), Heard()

    make_trainer().train(1, DATA, [every(1e6, never, "seconds"), every(1e-9, always, "seconds")])

    assert (never.at("step_end"), len(always.at("step_end"))) == ([], 4)
    assert always.at("step_begin") == always.at("step_end")


def test_async_hooks_stay_async_behind_both_kinds_of_filter():
    ruled, asked = Awaiting(), Awaiting()
    even = lambda c: c.original_args().cur_step_num % 2 == 0  # noqa: E731

    make_trainer().train(1, DATA, [every(2, ruled), when(even, asked)])

    assert ruled.steps == asked.steps == [2, 4]


def test_a_stop_inside_stops_at_its_step_under_the_callbacks_own_name():
    class Stopper(Callback):
        def on_train_step_end(self, run_context):
            run_context.request_stop("enough")

    result = make_trainer(run_ahead=RunAhead(block_steps=4)).train(2, DATA, every(3, Stopper()))

    assert (result.status, result.step, result.by) == ("stopped", 3, "Stopper")
    assert list(result.stats.callbacks) == ["Stopper"]


def test_what_enter_returns_in_its_place_stays_filtered():
    inner = Heard()

    class Replaced(Callback):
        def __enter__(self):
            return inner

    assert steps([every(4, once(Replaced()))], inner) == [4]


def test_state_goes_through_and_once_is_remembered():
    class Counting(Heard):
        def state_dict(self):
            return {"count": len(self.heard)}

        def load_state_dict(self, state):
            self.loaded = state["count"]

    first, second = Counting(), Counting()
    trained, fresh = once(first), once(second)
    make_trainer().train(1, DATA, callbacks=trained)

    fresh.load_state_dict(trained.state_dict())
    plain = every(2, second)
    plain.load_state_dict({"count": 3})

    assert fresh.state_dict()["gates"] == trained.state_dict()["gates"]
    assert (plain.state_dict(), second.loaded) == ({"count": len(second.heard)}, 3)


def test_settings_are_those_of_the_callback_inside():
    inner = Heard()
    callback = every(2, when(bool, inner))
    callback.on_error = "detach"
    inner.needs = {"train_network": 2}

    assert (inner.on_error, callback.needs) == ("detach", {"train_network": 2})
    assert isinstance(callback, Heard)


def test_an_observer_that_needs_the_network_is_not_waited_for_where_it_is_shut_out():
    class Looking(Watching):
        needs = {"train_network": 1}

    inner = Looking()

    assert steps(every(4, inner), inner, epochs=3) == [4, 8, 12]


def test_a_checkpoint_can_be_filtered(tmp_path):
    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=9)
    callback = between(2, 4, ModelCheckpoint("net", str(tmp_path), config))

    make_trainer().train(1, DATA, callbacks=callback)

    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} >= {"net-1_2", "net-1_3"}


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: every(0, Heard()), ArgumentError, "n must be at least 1, got 0"),
        (lambda: every(1.5, Heard()), ArgumentTypeError, "n must be an int"),
        (lambda: every(-1, Heard(), "seconds"), ArgumentError, "n must be above 0 s"),
        (lambda: every(2, Heard(), "hours"), ArgumentError, "unit must be one of 'steps', 'epo"),
        (lambda: between(3, 3, Heard()), ArgumentError, "b must be above a, got a=3 and b=3"),
        (lambda: between(1, 2, Heard(), "seconds"), ArgumentError, "unit must be one of"),
        (lambda: once(WRONG[0]), ArgumentTypeError, "callback must be a Callback, got type"),
        (lambda: when(WRONG[1], Heard()), ArgumentTypeError, "predicate must be callable"),
        (lambda: when(Awaiting().on_train_step_end, Heard()), ArgumentTypeError, "plain def"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_filter_of_hooks_that_the_callback_has_not_is_refused():
    with pytest.raises(ArgumentError, match="EarlyStopping has no hook that this filters; unit="):
        every(2, EarlyStopping())

    assert every(2, EarlyStopping(), unit="epochs")
