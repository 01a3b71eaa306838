"""Callbacks that observe: in order, in a thread of their own, and never in the run's way (C8)."""

import logging
import signal
import sys
import threading
from types import FrameType

import anyio
import jax
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas import Event, Gap, RailbusError
from railbus.subscribers import Callback
from railbus.trainer import RunAhead, Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]
BFLOAT16 = ml_dtypes.bfloat16
WAIT = 20.0  # seconds until a test gives up


def make_trainer() -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.01)
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optimizer, {"mse"})


def threads() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("railbus ")}


class Sees(Callback):
    """Notes every event that it gets, and in which thread."""

    observes = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.threads: set[str] = set()

    def note(self, run_context) -> None:
        self.seen.append((run_context.event.hook.value, run_context.event.seq))
        self.threads.add(threading.current_thread().name)

    on_train_begin = on_train_epoch_begin = on_train_step_begin = on_train_step_end = note
    on_train_epoch_end = on_train_end = on_eval_begin = on_eval_end = on_eval_step_end = note


class Stuck(Callback):
    """Is stuck in its first hook until it is told to go on."""

    observes = True

    def __init__(self) -> None:
        self.go, self.events, self.notes = threading.Event(), [], []

    def __exit__(self, *error) -> None:
        self.notes.append("exit")

    def on_train_step_begin(self, run_context) -> None:
        assert self.go.wait(WAIT)
        self.events.append(run_context.event)

    def on_train_step_end(self, run_context) -> None:
        self.events.append(run_context.event)


class Frees(Callback):
    """Lets a stuck one go on when the run ends."""

    def __init__(self, stuck: Stuck) -> None:
        self.stuck = stuck

    def on_train_end(self, run_context) -> None:
        self.stuck.go.set()


class Fails(Callback):
    """Raises at its second step."""

    observes = True

    def __init__(self, policy=None) -> None:
        self.on_error = policy
        self.steps = 0

    def on_train_step_end(self, run_context) -> None:
        self.steps += 1
        if self.steps == 2:
            raise ValueError("bad luck")


def test_an_observer_gets_its_hooks_in_order_in_a_thread_of_its_own():
    observer, participant = Sees(), Sees()
    participant.observes = False
    result = make_trainer().fit(2, DATA, DATA, callbacks=[observer, participant])

    assert observer.seen == participant.seen
    assert observer.threads == {"railbus Sees"}
    assert {name: tally.events for name, tally in result.stats.callbacks.items()} == {
        "Sees": len(observer.seen),
        "Sees#2": len(observer.seen),
    }
    assert not threads()


def test_an_observer_sees_a_lone_evaluation():
    observer = Sees()
    make_trainer().eval(DATA, observer)

    hooks = [hook for hook, _ in observer.seen]
    assert hooks == ["on_eval_begin", *["on_eval_step_end"] * 4, "on_eval_end"]


def test_the_run_goes_on_while_an_observer_is_stuck():
    observer = Stuck()
    result = make_trainer().train(3, DATA, [observer, Frees(observer)])

    assert result.step == 12
    assert len(observer.events) == 24
    assert observer.notes == ["exit"]


def test_what_an_observer_is_too_slow_for_is_a_gap_that_it_is_told(caplog):
    class Told(Stuck):
        def on_gap(self, gap) -> None:
            self.events.append(gap)

    told, silent = Told(), Stuck()
    frees = [Frees(told), Frees(silent)]
    make_trainer().train(600, DATA, [told, silent, *frees])

    gaps = [item for item in told.events if isinstance(item, Gap)]
    seqs = {item.seq for item in told.events if isinstance(item, Event)}
    lost = {seq for gap in gaps for seq in range(gap.first, gap.last + 1)}
    steps = {1 + 10 * epoch + place for epoch in range(600) for place in range(1, 9)}
    assert gaps and {gap.reason for gap in gaps} == {"slow"}
    assert seqs | lost >= steps and not seqs & lost
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert warnings == [f"Stuck was too slow for {4800 - len(silent.events)} events"]


def test_a_bounded_lag_lets_the_run_wait_and_loses_nothing():
    class Lags(Stuck):
        lag = 3

    observer, reached = Lags(), []

    class Watches(Callback):
        def on_train_step_begin(self, run_context) -> None:
            reached.append(run_context.event.seq)
            if len(reached) == 2:
                threading.Thread(target=observer.go.set).start()

    make_trainer().train(600, DATA, [observer, Watches()])

    assert len(observer.events) == 4800
    seqs = [event.seq for event in observer.events]
    assert seqs == sorted(seqs)


def test_with_a_bounded_lag_no_more_events_than_that_wait():
    class Lags(Stuck):
        lag = 3

        def on_train_step_begin(self, run_context) -> None:
            self.distances.append(committed[-1] - run_context.event.seq)

        distances: list[int] = []

    committed = [0]

    class Counts(Callback):
        def note(self, run_context) -> None:
            committed.append(run_context.event.seq)

        on_train_step_begin = on_train_step_end = note

    observer = Lags()
    make_trainer().train(100, DATA, [Counts(), observer])

    # One is in hand, three wait, and one more is with the run, which waits with it; epoch hooks,
    # which are not delivered, lie between.
    assert max(observer.distances) <= 1 + 3 + 1 + 2


def test_an_observers_hyperparams_are_real_numbers_in_their_own_precision():
    class Adds(Callback):
        def on_train_begin(self, run_context):
            values = {"flag": np.bool_(True), "wave": np.complex64(1j), "half": BFLOAT16(0.5)}
            run_context.original_args().update(values, text="x", count=3)

    class Reads(Callback):
        observes = True

        def on_train_epoch_begin(self, run_context):
            self.found = run_context.hyperparams()

    reads = Reads()
    make_trainer().train(1, DATA, [Adds(), reads])

    assert reads.found == {"learning_rate": np.float32(0.01), "half": BFLOAT16(0.5)}


def test_an_observer_cannot_stop_or_change_the_run():
    refusals = []

    class Tries(Callback):
        observes = True

        def on_train_step_end(self, run_context) -> None:
            cb_params = run_context.original_args()
            for attempt in (
                run_context.request_stop,
                lambda: run_context.save_checkpoint("here.ckpt"),
                lambda: cb_params.update(mine=1),
                lambda: cb_params.__setitem__("learning_rate", 1.0),
                lambda: setattr(cb_params, "learning_rate", 1.0),
                lambda: delattr(cb_params, "learning_rate"),
            ):
                with pytest.raises(RailbusError, match="observes = False") as caught:
                    attempt()
                refusals.append(caught.value)

    assert make_trainer().train(1, DATA, Tries()).status == "completed"
    assert len(refusals) == 24


def test_an_error_detaches_an_observer_and_is_logged_once(caplog):
    observer = Fails()
    result = make_trainer().train(3, DATA, observer)

    assert (result.status, result.step, observer.steps) == ("completed", 12, 2)
    assert result.stats.callbacks["Fails"].errors == 1
    [record] = caplog.records
    assert record.getMessage() == "Fails raised in on_train_step_end #5, on_error='detach'"


def test_an_error_lets_a_run_go_on_that_waits_for_a_bounded_lag(caplog):
    class Lags(Fails):
        lag = 1

    result = make_trainer().train(100, DATA, Lags())

    assert result.step == 400
    assert len(caplog.records) == 1


@pytest.mark.parametrize("policy", ["stop", "raise"])
def test_an_error_may_stop_or_fail_the_run(policy):
    class Holds(Callback):
        """The run is not over before the observer has failed."""

        def on_train_epoch_end(self, run_context) -> None:
            for thread in threading.enumerate():
                if thread.name == "railbus Fails":
                    thread.join(WAIT)

    observer, trainer = Fails(policy), make_trainer()
    callbacks = [observer, Holds()]
    if policy == "raise":
        with pytest.raises(ValueError, match="bad luck"):
            trainer.train(3, DATA, callbacks)
    else:
        result = trainer.train(3, DATA, callbacks)
        assert (result.status, result.by) == ("stopped", "Fails")
        assert result.reason == "Fails failed: ValueError: bad luck"
    assert observer.steps == 2
    assert not threads()


def test_an_observer_gets_the_error_of_a_failed_run():
    caught = []

    class Reports(Callback):
        observes = True

        def on_exception(self, run_context, error) -> None:
            caught.append((error, run_context.original_args().status))

    failing = Fails()
    failing.observes = False
    with pytest.raises(ValueError, match="bad luck") as raised:
        make_trainer().train(3, DATA, [Reports(), failing])

    assert caught == [(raised.value, "failed")]
    assert not threads()


def test_an_observer_that_stays_stuck_is_left_behind_and_said_once(caplog):
    observer = Stuck()
    observer.drain_seconds = 0.05
    make_trainer().train(1, DATA, observer)
    messages = [record.getMessage() for record in caplog.records]
    left = [one for one in threading.enumerate() if one.name == "railbus Stuck"]
    observer.go.set()
    for thread in left:
        thread.join(WAIT)

    assert [thread.daemon for thread in left] == [True]
    assert messages == [
        "Stuck did not get events #3 to #9: they were not delivered within 0.05 s of the run's "
        "end (drain_seconds)",
        "Stuck is stuck in a hook and keeps its thread",
        "Stuck is not exited, it is still in a hook",
    ]
    assert [event.seq for event in observer.events] == [2]
    assert observer.notes == []
    assert not threads()


async def test_a_cancelled_run_leaves_no_thread():
    observer, going = Sees(), anyio.Event()

    class Tells(Callback):
        async def on_train_step_end(self, run_context) -> None:
            going.set()

    with anyio.fail_after(WAIT), anyio.CancelScope() as scope:
        async with make_trainer().start_train(100_000, DATA, [observer, Tells()]):
            await going.wait()
            scope.cancel()

    assert observer.seen[-1][0] == "on_train_end"
    assert not threads()


def test_five_observers_change_no_bit_of_the_run():
    class Needs(Sees):
        needs = {"train_network": 3}

    alone, watched = make_trainer(), make_trainer()
    first = alone.fit(3, DATA, DATA)
    second = watched.fit(3, DATA, DATA, callbacks=[Sees(), Sees(), Sees(), Sees(), Needs()])

    assert first.history == second.history
    for one, other in zip(
        jax.tree.leaves(alone.params), jax.tree.leaves(watched.params), strict=True
    ):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("wait", [None, 100])
def test_an_observer_sees_the_network_of_the_steps_that_it_needs(wait):
    kept = {}

    class Needs(Callback):
        observes, lag = True, wait
        needs = {"train_network": 3}

        def on_train_step_end(self, run_context) -> None:
            cb_params = run_context.original_args()
            params = getattr(cb_params.train_network, "params", None)
            if params is not None:
                kept[cb_params.cur_step_num] = np.asarray(params["kernel"])

    expected = {}

    class Lockstep(Callback):
        def on_train_step_end(self, run_context) -> None:
            cb_params = run_context.original_args()
            expected[cb_params.cur_step_num] = np.asarray(cb_params.train_network.params["kernel"])

    make_trainer().train(3, DATA, [Needs(), Lockstep()])

    steps = [3, 6, 9, 12]
    assert list(kept) == steps if wait else set(kept) <= set(steps) and 12 in kept
    assert all(np.array_equal(kept[step], expected[step]) for step in kept)


def test_the_program_of_a_step_is_there_as_text():
    texts = []

    class Reads(Callback):
        def on_train_begin(self, run_context) -> None:
            texts.append(run_context.original_args().train_network.program_text)

    class Needs(Reads):
        observes, on_error = True, "raise"
        needs = {"train_network": 100}

    make_trainer().train(1, DATA, [Reads(), Needs()])

    assert texts[0] == texts[1]
    assert "stablehlo.dot_general" in texts[0]


def test_an_observer_that_needs_a_state_that_is_overwritten_is_refused():
    class Needs(Sees):
        needs = {"train_network": 3}

    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    trainer = Trainer(network, run_ahead=RunAhead(exact=False), optimizer=optax.sgd(0.1))
    with pytest.raises(ValueError, match="Needs observes and needs the network"):
        trainer.train(1, DATA, Needs())


def test_an_interrupt_of_the_last_wait_ends_the_observer_and_comes_out():
    main = threading.get_ident()
    waiting = threading.Event()

    class Interrupts(Callback):
        observes, notes = True, []

        def __exit__(self, *error) -> None:
            self.notes.append(error[0])

        def on_train_end(self, run_context) -> None:
            while "finish" not in names_of(sys._current_frames()[main]):
                waiting.wait(0)
            signal.pthread_kill(main, signal.SIGINT)

    observer = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        make_trainer().train(1, DATA, observer)

    assert observer.notes == [KeyboardInterrupt]
    assert not threads()


def test_an_interrupt_of_a_wait_for_an_observer_loses_no_event_silently():
    class Interrupts(Stuck):
        lag = 2

        def on_train_step_begin(self, run_context) -> None:
            while "wait_for" not in names_of(sys._current_frames()[main]):
                self.go.wait(0)
            signal.pthread_kill(main, signal.SIGINT)
            super().on_train_step_begin(run_context)

        def on_exception(self, run_context, error) -> None:
            self.notes.append(type(error))
            self.events.append(run_context.event)

        def on_gap(self, gap) -> None:
            self.events.append(gap)

    class Frees(Callback):
        def on_exception(self, run_context, error) -> None:
            observer.go.set()

    main, observer = threading.get_ident(), Interrupts()
    with pytest.raises(KeyboardInterrupt):
        make_trainer().train(2, DATA, [observer, Frees()])

    seqs = [(one.first if isinstance(one, Gap) else one.seq) for one in observer.events]
    assert seqs == sorted(seqs) and seqs[0] == 2
    lost = [one for one in observer.events if isinstance(one, Gap)]
    assert len(seqs) + sum(gap.last - gap.first for gap in lost) == seqs[-1] - 1
    assert observer.notes == [KeyboardInterrupt, "exit"]
    assert not threads()


def names_of(frame: FrameType | None) -> set[str]:
    """Names of the functions that a thread is in."""
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


@pytest.mark.parametrize(
    "attributes",
    [
        {"lag": 0},
        {"lag": True},
        {"deadline": 1.0},
        {"needs": {"optimizer": 3}},
        {"drain_seconds": 0},
        {"on_error": "ignore"},
    ],
)
def test_what_an_observer_cannot_have_is_refused_before_the_run(attributes):
    observer = Sees()
    for name, value in attributes.items():
        setattr(observer, name, value)

    with pytest.raises((TypeError, ValueError)):
        make_trainer().train(1, DATA, observer)
    assert observer.seen == []


def test_async_hooks_are_refused():
    class Waits(Callback):
        observes = True

        async def on_train_end(self, run_context) -> None: ...

    with pytest.raises(ValueError, match="make it a plain def"):
        make_trainer().train(1, DATA, Waits())
