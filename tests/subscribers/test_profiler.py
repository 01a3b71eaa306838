"""A trace of some steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, Profiler
from railbus.trainer import RunAhead, Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(8)]


def make_trainer(run_ahead=RunAhead.off()) -> Trainer:  # noqa: B008  # frozen
    loss_fn = lambda out, y: jnp.square(out - y).mean()  # noqa: E731
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, loss_fn, optax.sgd(0.01), {"mse"}, run_ahead=run_ahead)


def steps_in(directory):
    """How many training steps were given to the device within the one trace of a folder."""
    (path,) = directory.glob("plugins/profile/*/*.xplane.pb")
    calls, end = 0, 0.0
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name == "PjitFunction(step)" and event.start_ns >= end:
                    calls, end = calls + 1, event.start_ns + event.duration_ns
    return calls


def test_in_lockstep_the_trace_holds_these_steps_and_nothing_else(tmp_path):
    make_trainer(RunAhead(block_steps=1, ahead=0, fuse=False)).train(
        1, DATA, Profiler(tmp_path, 3, 6)
    )

    assert steps_in(tmp_path) == 3


def test_with_run_ahead_steps_done_before_the_trace_are_done_again_within(tmp_path):
    """The device has been through all steps when the first event comes."""
    ahead = RunAhead(block_steps=8, ahead=2, fuse=False)
    profiled, plain = make_trainer(ahead), make_trainer(ahead)
    result = profiled.train(1, DATA, Profiler(tmp_path, 3, 6))
    plain.train(1, DATA)

    assert result.stats.rollbacks == 1
    assert steps_in(tmp_path) >= 3
    assert jax.tree.all(jax.tree.map(np.array_equal, profiled.params, plain.params))


def test_where_nothing_can_be_taken_back_the_run_goes_on(tmp_path, caplog):
    ahead = RunAhead(block_steps=8, ahead=2, exact=False)
    result = make_trainer(ahead).train(1, DATA, Profiler(tmp_path, 3, 6))

    assert (result.status, result.step) == ("completed", 8)
    assert "the trace begins late" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_the_trace_is_written_when_the_run_ends_within_it(tmp_path, fails):
    class Ends(Callback):
        def on_train_step_end(self, run_context):
            if fails:
                raise ArithmeticError("bad luck")
            run_context.request_stop()

    callbacks = [Ends(), Profiler(tmp_path, 1, 5)]
    if fails:
        with pytest.raises(ArithmeticError):
            make_trainer().train(1, DATA, callbacks)
    else:
        make_trainer().train(1, DATA, callbacks)

    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1
    with jax.profiler.trace(tmp_path / "next"):
        pass


def test_a_run_that_does_not_come_there_and_a_lone_eval_write_nothing(tmp_path):
    trainer, profiler = make_trainer(), Profiler(tmp_path, 20, 30)
    trainer.train(1, DATA, profiler)
    trainer.eval(DATA, profiler)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"directory": " "},
        {"start_step": 0},
        {"start_step": 5},
        {"stop_step": 5.0},
        {"schedule": None},
    ],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        Profiler(**{"directory": "trace", "start_step": 1, "stop_step": 5, **arguments})
