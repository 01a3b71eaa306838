"""`replay`: recorded events fed to callbacks."""

import logging
import subprocess
import sys
import threading
import time
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from railbus.bus import Events
from railbus.schemas import Committed, Gap, NotRecorded, Reference
from railbus.schemas.errors import (
    ArgumentError,
    ArgumentTypeError,
    CallbackTypeError,
    ParamError,
    ReadOnlyParam,
    StreamGap,
)
from railbus.schemas.lifecycle import SequenceError
from railbus.subscribers import (
    Callback,
    EarlyStopping,
    LambdaCallback,
    LossMonitor,
    Replayed,
    RunContext,
    StopAtStep,
    TimeMonitor,
    diff,
    replay,
    synthesize,
)

LOSSES = [1.0, 0.5, 0.25]


@pytest.fixture
def made() -> Events:
    return synthesize(3, 4, LOSSES, {"eval_loss": [3.0, 2.0, 1.0]}, learning_rate=0.5)


class Writer(Callback):
    """Writes `key` in each epoch's begin; prints what it and others wrote."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        run_context.original_args()[self.key] = self.value

    def on_train_step_end(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        print(self.key, {name: cb_params.get(name) for name in ("a", "b", "c")})


class Reader(Callback):
    """Keeps what it sees of a key at the begin and the steps of epochs."""

    def __init__(self, key: str) -> None:
        self.key, self.seen = key, list[Any]()

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        self.seen.append(run_context.original_args().get(self.key))

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.seen.append(run_context.original_args().get(self.key))


class A(Writer):
    pass


class B(Writer):
    pass


def committed(stream: Events) -> list[Committed]:
    return [one for one in stream if isinstance(one, Committed)]


def asking(**hooks: Any) -> LambdaCallback:
    return LambdaCallback(**hooks)


def test_an_absent_callbacks_patches_come_from_the_record_and_are_marked(made):
    record = replay(made, [A("a", 1), B("b", 2)])

    replayed = replay(record, B("b", 2))

    assert replayed.committed == record.committed
    assert {patch.by for patch in replayed.marked} == {"A"}
    assert [patch.recorded for patch in replayed.patches] == [True, False] * 3
    assert {ack.by for ack in replayed.acks} == {"B"}


def test_recorded_patches_are_applied_in_their_place_of_the_list(made):
    class Middle(Reader):
        pass

    record = replay(made, [A("a", 1), Middle("a"), B("a", 2)])
    before_all, middle, after_all = Reader("a"), Middle("a"), Reader("a")

    replay(record, [before_all, middle])
    replay(record, [after_all])

    first_epoch = [1, 2, 2, 2, 2]
    assert middle.seen[:5] == first_epoch
    assert before_all.seen[:6] == [1, 2, 2, 2, 2, 1]  # right before Middle
    assert after_all.seen[:5] == [2, 2, 2, 2, 2]  # at the end


def test_what_a_replayed_callback_wrote_in_the_record_does_not_leak(made):
    record = replay(made, [A("a", "recorded"), B("b", "recorded")])
    reader = Reader("a")

    replayed = replay(record, [A("a", "replayed"), reader])

    assert set(reader.seen) == {"replayed"}
    assert replayed.committed[-1].event.cb_params.a == "replayed"
    assert replayed.committed[-1].event.cb_params.b == "recorded"
    assert diff(record, replayed) is not None


def test_a_key_that_is_not_written_any_more_is_not_there(made):
    record = replay(made, [A("a", "recorded"), B("b", 1)])
    reader = Reader("a")

    replay(record, [A("c", 1), reader])

    assert set(reader.seen) == {None}


def test_a_traced_value_is_set_in_the_ack_and_is_what_was_recorded_afterwards(made):
    rates = []

    def assign(run_context: RunContext) -> None:
        run_context.original_args().learning_rate = 0.25

    def look(run_context: RunContext) -> None:
        rates.append(run_context.original_args().learning_rate)

    replayed = replay(
        made,
        [asking(on_train_epoch_begin=assign), asking(on_train_epoch_begin=look, on_train_end=look)],
    )

    assert rates == [np.float32(0.25)] * 3 + [np.float32(0.5)]
    assert [list(patch.values) for patch in replayed.patches] == [["learning_rate"]] * 3
    assert replayed.error is None


@pytest.mark.parametrize("value", [float("nan"), "fast", [0.1]])
def test_a_traced_value_takes_what_it_takes_in_a_run(made, value):
    def assign(run_context: RunContext) -> None:
        run_context.original_args().learning_rate = value

    replayed = replay(made, asking(on_train_begin=assign))

    assert isinstance(replayed.error, ArgumentError)


def test_the_network_can_be_assigned_as_it_is_and_is_then_what_was_assigned(made):
    def same(run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        cb_params.train_network = cb_params.train_network

    def other(run_context: RunContext) -> None:
        run_context.original_args().train_network = {"kernel": 2.0}

    def look(run_context: RunContext) -> None:
        print(run_context.original_args().train_network.params)

    replayed = replay(
        made,
        [
            asking(on_train_epoch_begin=same),
            asking(on_train_epoch_end=other),
            asking(on_train_epoch_end=look),
        ],
    )
    gone = replay(made, asking(on_train_epoch_begin=other, on_train_step_begin=look))

    assert replayed.error is None
    assert replayed.lines == ("{'kernel': 2.0}",) * 3
    assert [list(patch.values) for patch in replayed.patches] == [["train_network"]] * 6
    assert gone.lines == ("{'kernel': 2.0}",)  # what the step has made of it is not known
    assert isinstance(gone.error, NotRecorded)


def test_facts_stay_read_only(made):
    def assign(run_context: RunContext) -> None:
        run_context.original_args().cur_step_num = 7

    assert isinstance(replay(made, asking(on_train_begin=assign)).error, ReadOnlyParam)


@pytest.mark.parametrize(
    "ask",
    [
        lambda shown: shown.train_network.params,
        lambda shown: shown.optimizer.state,
        lambda shown: getattr(shown.network, "layers", None),
        lambda shown: hasattr(shown.network, "layers"),
        lambda shown: len(shown.train_dataset),
        lambda shown: list(shown.train_dataset),
        lambda shown: shown.loss_fn(1, 2),
        lambda shown: np.asarray(shown.train_dataset),
        lambda shown: shown.train_dataset[0],
    ],
)
def test_a_live_thing_says_that_it_was_not_recorded(made, ask):
    replayed = replay(made, asking(on_train_begin=lambda run: ask(run.original_args())))

    assert isinstance(replayed.error, NotRecorded)
    assert not isinstance(replayed.error, AttributeError)
    assert "was not recorded" in str(replayed.error)


def test_an_absent_fact_keeps_its_own_error(made):
    replayed = replay(made, asking(on_train_begin=lambda run: run.original_args().metrics))

    assert isinstance(replayed.error, ParamError)


def test_large_outputs_are_stubs_inside_of_their_tuple(made):
    big = Reference(kind="array", type="ndarray", summary="float32[9]", id="")
    made = with_outputs(made, [np.float32(1.0), big])
    kinds, errors = [], []

    def look(run_context: RunContext) -> None:
        loss, outputs = run_context.original_args().net_outputs
        kinds.append(type(run_context.original_args().net_outputs))
        try:
            outputs.asnumpy()
        except NotRecorded as error:
            errors.append(str(error))

    replay(made, asking(on_train_step_end=look), until="on_train_step_end")

    assert kinds == [tuple]
    assert "float32[9]" in errors[0]


def with_outputs(made: Events, outputs: Any) -> Events:
    from railbus.schemas.codec import entry, join, pack
    from railbus.schemas.entries import split

    entries = []
    for one in committed(made):
        values = split(one.event.snapshot)
        if "net_outputs" in values:
            values["net_outputs"] = pack(outputs)
        snapshot = join([entry(key, value) for key, value in values.items()])
        event = msgspec.structs.replace(one.event, snapshot=snapshot)
        entries.append(msgspec.structs.replace(one, event=event))
    return Events(made.about, tuple(entries))


def test_there_is_nothing_to_save_in_a_replay(made):
    replayed = replay(made, asking(on_train_step_end=lambda run: run.save_checkpoint("a.ckpt")))

    assert isinstance(replayed.error, ArgumentError)


def test_a_stop_that_is_not_in_the_record_ends_the_feed_where_the_run_would_have_ended(made):
    replayed = replay(made, StopAtStep(step=6))

    hooks = [entry.event.hook.value for entry in replayed.committed]
    assert hooks[-1] == "on_train_step_end"
    assert replayed.committed[-1].event.cb_params.cur_step_num == 6
    assert replayed.stop is not None
    assert replayed.diverged is not None
    assert "StopAtStep asked at #21" in replayed.diverged
    assert "no on_train_step_begin #22" in replayed.diverged


def test_a_stop_at_the_end_of_an_epoch_closes_that_epoch_first(made):
    replayed = replay(made, StopAtStep(step=8))

    assert replayed.committed[-1].event.hook.value == "on_train_epoch_end"
    assert replayed.committed[-1].event.cb_params.cur_epoch_num == 2


def test_a_step_that_is_begun_ends(made):
    def stop(run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num == 2:
            run_context.request_stop()

    replayed = replay(made, asking(on_train_step_begin=stop))

    assert replayed.committed[-1].event.hook.value == "on_train_step_end"


def test_a_validation_that_is_cut_ends_the_feed_there(made):
    replayed = replay(made, asking(on_eval_begin=lambda run: run.request_stop()))

    assert replayed.committed[-1].event.hook.value == "on_eval_epoch_begin"
    assert replayed.stop is None
    assert replayed.diverged is not None


def test_the_same_stop_at_the_same_event_goes_on_to_the_recorded_ending(made):
    record = replay(made, StopAtStep(epoch=3))
    assert record.diverged is not None  # the numbers made no stop

    again = replay(record, StopAtStep(epoch=3))

    assert again.diverged is None
    assert again.committed == record.committed


def test_a_recorded_stop_that_is_not_repeated_is_said(made):
    record = replay(made, StopAtStep(epoch=2))

    replayed = replay(record, StopAtStep(epoch=9))

    assert replayed.stop is None
    assert replayed.diverged is not None
    assert "StopAtStep stopped the recorded run" in replayed.diverged


def test_an_absent_callbacks_stop_is_the_recorded_one(made):
    record = replay(made, [StopAtStep(epoch=2), LossMonitor()])

    replayed = replay(record, LossMonitor())

    assert replayed.diverged is None
    assert replayed.stop is None
    assert replayed.decisions == record.decisions


def test_until_is_a_seq_a_hook_or_a_function_of_the_event(made):
    ends = [
        replay(made, LossMonitor(), until=until).committed[-1].event
        for until in (5, "on_eval_end", lambda event: event.time_ns > 1_000_000_000)
    ]

    assert [event.seq for event in ends] == [5, 15, 35]


def test_only_delivers_those_hooks_and_the_run_goes_on_all_the_same(made):
    record = replay(made, [A("a", 1), LossMonitor()])

    replayed = replay(record, [A("a", 1), LossMonitor()], only={"on_train_step_end"})

    assert {ack.hook.value for ack in replayed.acks} == {"on_train_step_end"}
    assert len(replayed.committed) == len(made)
    assert replayed.patches == ()


def test_the_recorded_clock_is_what_callbacks_see_at_any_speed(made):
    expected = replay(made, TimeMonitor()).lines

    since = time.monotonic()
    replayed = replay(made, TimeMonitor(), clock=20.0)
    took = time.monotonic() - since

    assert replayed.lines == expected
    assert took >= 1.5 / 20  # the run took 1.5 s


async def test_async_hooks_are_paced_and_replay_inside_of_an_event_loop(made, anyio_backend):
    class Asynchronous(Callback):
        async def on_train_step_end(self, run_context: RunContext) -> None:
            await anyio.lowlevel.checkpoint()
            print(run_context.now())

    with anyio.fail_after(30):
        await anyio.lowlevel.checkpoint()
        fast, paced = replay(made, Asynchronous()), replay(made, Asynchronous(), clock=1000)

    assert len(fast.lines) == 12
    assert paced.lines == fast.lines


def test_an_error_of_a_callback_is_told_to_all_and_kept(made):
    class Told(Callback):
        def on_exception(self, run_context: RunContext, error: BaseException) -> None:
            print(type(error).__name__, run_context.original_args().stop_by)

    def fail(run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num == 3:
            raise KeyError("lost")

    replayed = replay(made, [Told(), asking(on_train_step_end=fail)])

    assert isinstance(replayed.error, KeyError)
    assert replayed.lines == ("KeyError LambdaCallback",)
    last = replayed.committed[-1].event
    assert (last.hook.value, last.seq, last.cb_params.status) == ("on_exception", 7, "failed")
    assert last.time_ns == committed(made)[7].event.time_ns
    assert replayed.diverged == "LambdaCallback raised KeyError at #7: 'lost'"


def test_an_error_beside_an_absent_callbacks_patch_ends_the_replay(made):
    """Its ack to the withdrawn event was asked for again in `on_exception`, for ever."""

    class Fails(Callback):
        def on_train_epoch_begin(self, run_context: RunContext) -> None:
            raise RuntimeError("bad luck")

        def on_exception(self, run_context: RunContext, error: BaseException) -> None:
            print("told")

    record = replay(made, [A("a", 1), B("b", 1)])

    replayed = replay(record, [Fails(), B("b", 1)])

    assert isinstance(replayed.error, RuntimeError)
    assert replayed.lines == ("told",)
    hooks = [entry.event.hook.value for entry in replayed.committed]
    assert hooks == ["on_train_begin", "on_exception"]


def test_policies_act_as_in_a_run(made, caplog):
    def fail(run_context: RunContext) -> None:
        raise RuntimeError("bad luck")

    stops, detaches = asking(on_train_step_end=fail), asking(on_train_step_end=fail)
    stops.on_error, detaches.on_error = "stop", "detach"

    replayed = replay(made, [detaches, stops])

    assert replayed.error is None
    assert [ack.error for ack in replayed.acks] == ["RuntimeError: bad luck"] * 2
    assert replayed.stop is not None
    assert replayed.stop.by == "LambdaCallback#2"
    assert replayed.committed[-1].decision.detached == ("LambdaCallback",)


def test_a_deadline_is_kept_in_a_replay(made, caplog):
    never = threading.Event()

    class Slow(Callback):
        deadline, on_error = 0.05, "detach"

        def on_train_epoch_begin(self, run_context: RunContext) -> None:
            never.wait(20)

    replayed = replay(made, [Slow(), LossMonitor()])
    never.set()

    assert [d.detached for d in replayed.decisions if d.detached] == [("Slow",)]
    assert len(replayed.lines) == 15
    assert [ack for ack in replayed.acks if ack.by == "Slow"] == []


@pytest.mark.parametrize("policy", ["stop", "detach"])
def test_an_absent_callback_misses_its_deadline_where_it_did(made, caplog, policy):
    never = threading.Event()

    class Slow(Callback):
        deadline, on_error = 0.05, policy

        def on_train_epoch_begin(self, run_context: RunContext) -> None:
            never.wait(20)

    record = replay(made, [Slow(), LossMonitor()])
    never.set()

    replayed = replay(record, LossMonitor())

    assert replayed.decisions[1].detached == ("Slow",)
    assert len(replayed.decisions[1].stops) == (policy == "stop")
    assert replayed.committed == record.committed


def test_callbacks_are_entered_and_exited(made):
    class Entered(Callback):
        def __enter__(self) -> Callback:
            print("enter")
            return self

        def __exit__(self, *error: object) -> None:
            print("exit", error[0])

    assert replay(made, Entered()).lines == ("enter", "exit None")
    assert replay(made, Entered(), until=3).lines == ("enter", "exit None")


def test_observers_get_every_event_however_slow():
    big = synthesize(1, 6000, [1.0])
    seen, never = [], threading.Event()

    class Watches(Callback):
        observes = True

        def on_train_step_end(self, run_context: RunContext) -> None:
            if not seen:
                never.wait(0.5)  # without a lag a whole replay would pass by
            seen.append(run_context.original_args().cur_step_num)

    replayed = replay(big, Watches())

    assert seen == list(range(1, 6001))
    assert replayed.about.observers == ("Watches",)
    assert replayed.acks == ()


def test_an_observers_stop_has_no_effect_but_its_error_is_kept(made, caplog):
    class Watches(Callback):
        observes, on_error = True, "raise"

        def on_train_step_end(self, run_context: RunContext) -> None:
            raise RuntimeError("bad luck")

    replayed = replay(made, Watches())

    assert isinstance(replayed.error, RuntimeError)
    assert len(replayed.committed) == len(made)


def test_missing_events_are_refused_unless_they_are_skipped(made, caplog):
    gap = Gap(run_id="synthetic", first=3, last=6, reason="slow")
    marked = Events(made.about, (*made.entries[:3], gap, *made.entries[7:]))
    unmarked = Events(made.about, (*made.entries[:3], *made.entries[7:]))
    headless = Events(made.about, made.entries[5:])

    for torn, first in ((marked, 3), (unmarked, 3), (headless, 0)):
        with pytest.raises(StreamGap, match=f"events #{first} to"):
            replay(torn, LossMonitor())
    replayed = replay(marked, LossMonitor(), gaps="skip")
    assert len(replayed.committed) == len(made) - 4
    assert "events #3 to #6 are missing (slow)" in caplog.text


def test_callbacks_are_exited_when_the_stream_fails(made):
    left = []

    class Left(Callback):
        def __exit__(self, *error: object) -> None:
            left.append(error[0])

    with pytest.raises(StreamGap):
        replay(Events(made.about, made.entries[5:]), Left())

    assert left == [StreamGap]


def test_what_is_not_one_run_in_its_order_is_refused(made):
    other = synthesize(3, 4, LOSSES, {"eval_loss": [3.0, 2.0, 1.0]}, run_id="other")
    twice = Events(made.about, (*made.entries[:3], *made.entries[2:]))
    mixed = Events(made.about, (*made.entries[:3], *other.entries[3:]))

    for wrong in (twice, mixed):
        with pytest.raises(SequenceError):
            replay(wrong, LossMonitor())


def test_a_failed_run_is_replayed_to_its_exception(made):
    def fail(run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num == 3:
            raise ValueError("bad luck")

    class Told(Callback):
        def on_exception(self, run_context: RunContext, error: BaseException) -> None:
            print(error, "|", run_context.original_args().stop_reason)

    record = replay(made, [Told(), asking(on_train_step_end=fail)])

    replayed = replay(record, [Told()])

    assert replayed.lines == ("ValueError: bad luck | ValueError: bad luck",)
    assert replayed.error is None
    assert replayed.committed == record.committed


def test_an_operators_stop_stays_where_it_was(made):
    from railbus.schemas import StopRequest

    entries = committed(made)
    last = entries[15]
    stop = StopRequest(by="operator", at=15, reason="enough", scope="train", interrupts=True)
    decision = msgspec.structs.replace(last.decision, stops=(stop,))
    entries[15] = msgspec.structs.replace(last, decision=decision)

    heard = []

    def look(run_context: RunContext) -> None:
        heard.append(run_context.get_stop_requested())

    replayed = replay(Events(made.about, tuple(entries)), asking(on_train_epoch_end=look))

    assert replayed.decisions[15].stops == (stop,)
    assert heard[0] is True
    assert replayed.stop is None


def test_what_is_printed_is_kept_and_echoed_if_asked(made, capsys):
    quiet = replay(made, LossMonitor(4))
    assert capsys.readouterr().out == ""

    replay(made, LossMonitor(4), echo=True)

    assert capsys.readouterr().out.splitlines() == list(quiet.lines)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"clock": 0}, ArgumentError),
        ({"clock": "fast"}, ArgumentTypeError),
        ({"until": "on_step"}, ArgumentError),
        ({"until": 1.5}, ArgumentTypeError),
        ({"only": "on_train_end"}, ArgumentError),
        ({"only": ["on_step"]}, ArgumentError),
        ({"gaps": "ignore"}, ArgumentError),
        ({"callbacks": EarlyStopping}, CallbackTypeError),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_the_call(made, arguments, wrong):
    with pytest.raises(wrong):
        replay(made, **{"callbacks": LossMonitor(), **arguments})


def test_older_hook_names_are_refused_for_a_run_with_validations(made):
    class Old(Callback):
        def step_end(self, run_context: RunContext) -> None:
            pass

    with pytest.raises(ArgumentError, match="rename"):
        replay(made, Old())
    assert replay(synthesize(1, 2, [1.0]), Old()).error is None


def test_a_resumed_run_says_that_its_callbacks_begin_anew(made, caplog):
    from railbus.schemas.lifecycle import Place

    plan = msgspec.structs.replace(made.about.plan, resumed=Place(step=0, epoch=0, batches=None))
    about = msgspec.structs.replace(made.about, plan=plan)

    with caplog.at_level(logging.WARNING):
        replay(Events(about, made.entries), LossMonitor())

    assert "begin anew" in caplog.text


def test_events_that_nobody_wants_are_not_decoded(made):
    """Their snapshots may be anything."""
    entries = [
        msgspec.structs.replace(one, event=msgspec.structs.replace(one.event, snapshot=b"\xc1"))
        if one.event.hook.value == "on_train_step_end"
        else one
        for one in committed(made)
    ]

    replayed = replay(Events(made.about, tuple(entries)), EarlyStopping())

    assert isinstance(replayed, Replayed)
    assert replayed.error is None


def test_a_replay_needs_no_jax():
    code = """if True:
        import sys
        from railbus.subscribers import EarlyStopping, LossMonitor, TimeMonitor, replay, synthesize
        made = synthesize(3, 4, [1.0, 0.5, 0.25], {"eval_loss": [3.0, 2.0, 2.0]})
        got = replay(made, [LossMonitor(4), EarlyStopping(patience=1), TimeMonitor()])
        print(got.stop.by, *sorted({"jax", "jaxlib", "flax", "optax", "orbax"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )

    assert done.stdout.split() == ["EarlyStopping"]


def test_a_path_is_no_stream(tmp_path):
    path: Any = tmp_path

    with pytest.raises(ArgumentTypeError, match=r"opened by Recording\(path\)"):
        replay(path, LossMonitor())
