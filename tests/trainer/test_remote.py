"""Real runs that a participant in another process steers, against the same one in process."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.bus.serving import serving
from railbus.schemas.errors import StateGone
from railbus.subscribers import Callback, LambdaCallback, Remote, RunContext
from railbus.subscribers.attached import run_callback
from railbus.trainer import RunAhead, Trainer

from ..subscribers.visited import TOKEN, process
from ..subscribers.visitor import Steers

DATA = [(np.full((2, 3), 0.1 * k, np.float32), np.full((2, 1), k, np.float32)) for k in range(20)]


def make_trainer(width: int = 4, run_ahead: RunAhead | None = None) -> Trainer:
    rngs = nnx.Rngs(0)
    network = nnx.Sequential(nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs))
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.01)
    return Trainer(
        network,
        lambda out, y: ((out - y) ** 2).mean(),
        optimizer,
        run_ahead=run_ahead or RunAhead(),
    )


def bits(trainer: Trainer) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(nnx.state(trainer.network))]


def of_the_run(trainer: Trainer) -> list[Any]:
    """Its snapshots but for the callback list, and what was decided; names taken out."""
    shown = []
    for entry in trainer.bus.runs["run"].entries():
        params = {k: v for k, v in entry.event.cb_params.items() if k != "stop_by"}
        patches = [patch for _, patch in entry.decision.patches]
        stops = [(stop.at, stop.reason, stop.scope) for stop in entry.decision.stops]
        shown.append((entry.event.hook, repr(params), patches, stops))
    return shown


def visited(
    trainer: Trainer, callback: Callback, epochs: int = 2, **arguments: Any
) -> tuple[Any, list[BaseException]]:
    """Train with `callback` as a guest, in a thread of its own."""
    errors: list[BaseException] = []
    with serving(trainer.bus, tokens=[TOKEN]) as served:

        def visit() -> None:
            try:
                run_callback(served.url, callback, token=TOKEN.value, slot="tuner")
            except BaseException as error:
                errors.append(error)

        guest = threading.Thread(target=visit)
        guest.start()
        result = trainer.train(
            epochs, DATA, Remote("tuner", deadline=20, **arguments), run_id="run"
        )
        guest.join(20)
        assert not guest.is_alive()
    return result, errors


def test_another_process_changes_and_stops_a_run_at_the_step_and_to_the_bit_of_lockstep():
    alone = make_trainer(run_ahead=RunAhead.off())
    expected = alone.train(2, DATA, Steers(), run_id="run")
    trainer = make_trainer()
    with serving(trainer.bus, tokens=[TOKEN]) as served, process(served.url, "steers") as guest:
        result = trainer.train(2, DATA, Remote("tuner", deadline=20), run_id="run")
        said, complaints = guest.communicate(timeout=20)

    assert (said, complaints) == ("False visitor\n", "")
    assert (result.step, expected.step, result.by) == (17, 17, "tuner")
    assert result.reason == expected.reason == "seventeen is enough"
    assert bits(trainer) == bits(alone)
    assert of_the_run(trainer) == of_the_run(alone)


def lowers(run_context: RunContext) -> None:
    cb_params = run_context.original_args()
    if cb_params.cur_step_num == 20:
        cb_params.learning_rate = cb_params.learning_rate / 2


def test_with_a_remote_every_ten_steps_the_run_ahead_is_invisible_and_goes_on():
    turns: list[int] = []

    def counts(run_context: RunContext) -> None:
        turns.append(run_context.original_args().cur_step_num)
        lowers(run_context)

    alone = make_trainer(run_ahead=RunAhead.off())
    alone.train(2, DATA, LambdaCallback(on_train_step_end=lowers), run_id="run")
    trainer = make_trainer(run_ahead=RunAhead(block_steps=8))
    visited(trainer, LambdaCallback(on_train_step_end=counts), every=10)

    assert turns == [10, 20, 30, 40]
    assert of_the_run(trainer) == of_the_run(alone)
    assert bits(trainer) == bits(alone)


@pytest.mark.parametrize("width", [4, 60_000])
def test_the_network_that_is_fetched_is_the_one_in_process(width):
    here: list[Any] = []
    there: list[Any] = []

    def keeps(into: list[Any]) -> Callable[[RunContext], None]:
        def keep(run_context: RunContext) -> None:
            cb_params = run_context.original_args()
            if cb_params.cur_step_num in (7, 20):
                params = cb_params.train_network.params
                into.append([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)])

        return keep

    make_trainer(width).train(1, DATA, LambdaCallback(on_train_step_end=keeps(here)))
    _, errors = visited(make_trainer(width), LambdaCallback(on_train_step_end=keeps(there)), 1)

    assert errors == []
    assert len(there) == 2 and there == here


def test_a_network_is_fetched_in_its_hook_only_and_what_was_fetched_stays():
    handles: list[Any] = []
    gone: list[BaseException] = []
    names: list[Any] = []

    def looks(run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        handles.append(cb_params.train_network)
        if cb_params.cur_step_num == 1:
            names.append(sorted(handles[0].params))
        if cb_params.cur_step_num == 3:
            names.append(sorted(handles[0].params))
            try:
                names.append(sorted(handles[1].params))
            except StateGone as error:
                gone.append(error)

    _, errors = visited(make_trainer(), LambdaCallback(on_train_step_end=looks), 1)

    assert errors == []
    assert names == [["layers"]] * 2
    assert "the event is over" in str(gone[0])
