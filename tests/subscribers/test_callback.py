"""`Callback` in a list: entering, leaving, older names, deadlines."""

import threading

import anyio
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError, DeadlineExceeded
from railbus.subscribers import Callback
from railbus.trainer import Trainer

DATA = [(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))] * 2


def make_trainer() -> Trainer:
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: (out - y).mean(), optax.sgd(0.1), {"loss"})


class Notes(Callback):
    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def __enter__(self):
        self.notes.append(f"{self.name} enter")
        return self

    def __exit__(self, *error):
        self.notes.append(f"{self.name} exit")

    def on_train_end(self, run_context):
        self.notes.append(f"{self.name} end")


def test_callbacks_are_entered_in_order_once_and_exited_in_reverse():
    notes = []

    make_trainer().fit(2, DATA, DATA, callbacks=(Notes("a", notes), Notes("b", notes)))

    assert notes == ["a enter", "b enter", "a end", "b end", "b exit", "a exit"]


def test_an_enter_that_raises_exits_those_before_it_and_publishes_nothing():
    notes = []

    class Fails(Callback):
        def __enter__(self):
            raise LookupError("no")

    trainer = make_trainer()
    with pytest.raises(LookupError):
        trainer.train(1, DATA, [Notes("a", notes), Notes("b", notes), Fails()])

    assert notes == ["a enter", "b enter", "b exit", "a exit"]
    assert [log.entries() for log in trainer.bus.runs.values()] == [[]]


def test_enter_may_return_the_callback_that_takes_the_place():
    notes = []

    class Opens(Callback):
        def __enter__(self):
            return Notes("inner", notes)

        def __exit__(self, *error):
            notes.append("outer exit")

    make_trainer().train(1, DATA, Opens())

    assert notes == ["inner end", "outer exit"]


def test_an_object_listed_twice_is_called_twice():
    notes = []
    twice = Notes("a", notes)

    result = make_trainer().train(1, DATA, [twice, twice])

    assert notes.count("a end") == 2
    assert list(result.stats.callbacks) == ["Notes", "Notes#2"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("on_train_step_ends", "(did you mean on_train_step_end?)"),
        ("on_epoch_end", "(did you mean on_train_epoch_end?)"),
        ("on_train_batch_end", "(did you mean on_train_step_end?)"),
        ("on_validation_start", "(did you mean on_eval_begin?)"),
        ("on_message", "never be called; the hooks are on_train_begin"),
    ],
)
def test_a_method_that_is_named_like_a_hook_and_is_none_is_refused(name, says):
    callback = type("Mine", (Callback,), {name: lambda self, run_context: None})()

    with pytest.raises(ArgumentError, match=f"Mine.{name} is no hook") as caught:
        make_trainer().train(1, DATA, callback)

    assert says in str(caught.value)


def test_a_policy_that_is_misspelled_is_refused():
    class Slips(Callback):
        on_eror = "stop"

    with pytest.raises(ArgumentError, match=r"Slips.on_eror has no meaning; did you mean on_error"):
        make_trainer().train(1, DATA, Slips())


def test_a_hook_that_takes_other_arguments_is_refused_before_anything_runs():
    entered = []

    class Wrong(Callback):
        def __enter__(self):
            entered.append(self)

        def on_train_end(self):  # type: ignore[override]
            pass

    with pytest.raises(ArgumentError, match=r"Wrong.on_train_end must take \(self, run_context\)"):
        make_trainer().train(1, DATA, Wrong())

    assert entered == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_older_names_serve_training_and_evaluation(asynchronous):
    seen = []

    class Plain(Callback):
        def step_end(self, run_context):
            seen.append(run_context.event.hook.value)

    class Async(Callback):
        async def step_end(self, run_context):
            seen.append(run_context.event.hook.value)

    callback = Async() if asynchronous else Plain()
    trainer = make_trainer()
    trainer.train(1, DATA, callback)
    trainer.eval(DATA, callback)

    assert seen == ["on_train_step_end"] * 2 + ["on_eval_step_end"] * 2


@pytest.mark.parametrize("policy", ["stop", "detach", "raise"])
def test_a_stuck_hook_is_left_behind_at_its_deadline_and_its_policy_acts(policy):
    release = threading.Event()
    notes = []

    class Stuck(Callback):
        deadline = 0.2
        on_error = policy

        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 1:
                release.wait()
                run_context.original_args().late = True

    callbacks = [Stuck(), Notes("b", notes)]
    try:
        if policy == "raise":
            with pytest.raises(DeadlineExceeded, match="no ack within 0.2 s"):
                make_trainer().train(1, DATA, callbacks)
            assert notes == ["b enter", "b exit"]
        else:
            result = make_trainer().train(1, DATA, callbacks)
            assert (result.status, result.step) == (
                ("stopped", 1) if policy == "stop" else ("completed", 2)
            )
            assert notes == ["b enter", "b end", "b exit"]
    finally:
        release.set()


def test_a_stuck_async_hook_is_cancelled_at_its_deadline_and_what_it_wrote_is_gone():
    cancelled: list[bool] = []
    left: list[object] = []

    class Stuck(Callback):
        deadline = 0.2
        on_error = "detach"

        async def on_train_step_end(self, run_context):
            run_context.original_args().mine = 1
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(True)

        def on_train_end(self, run_context):
            left.append("stuck")

    class After(Callback):
        def on_train_step_end(self, run_context):
            left.append("mine" in run_context.original_args())

    result = make_trainer().train(1, DATA, [Stuck(), After()])

    assert (result.status, cancelled) == ("completed", [True])
    assert left == [False, False]
