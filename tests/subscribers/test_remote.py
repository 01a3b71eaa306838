"""A participant in another process: in its place of the list, bounded, answered exactly once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from websockets.exceptions import ConnectionClosed

from railbus.bus import EventBus, Verdict
from railbus.bus.serving import serving
from railbus.schemas import Hook, Ledger, Plan
from railbus.schemas.codes import Code
from railbus.schemas.errors import (
    ArgumentError,
    DeadlineExceeded,
    NotTraced,
    ReadOnlyParam,
    RemoteError,
    RemoteFailure,
)
from railbus.schemas.frames import Answer, Asked, Bye, Credit, Fetch, Hello, Welcome
from railbus.subscribers import Callback, LambdaCallback, Remote, Roster, every
from railbus.subscribers.attached import arun_callback

from ..bus.relay import relay
from ..semantics.synthetic import Script, play
from .visited import HELLO, PLAN, TOKEN, WATCHES, Place, hear, place, process, say, until


class tuner(Script):
    """Is called by its class in process, by its slot elsewhere."""


def sets(key: str, value: Any) -> Any:
    return lambda run_context: setattr(run_context.original_args(), key, value)


def joins(run_context: Any) -> None:
    run_context.request_stop(f"stop asked before: {run_context.get_stop_requested()}")


def stops(reason: str, scope: Any = None) -> Any:
    return lambda run_context: run_context.request_stop(reason, scope)


STEP, BEGIN, EPOCH = "on_train_step_end", "on_train_begin", "on_train_epoch_end"
BEFORE = {
    (STEP, 2): sets("k_before", 1),
    (STEP, 5): stops("first"),
    (EPOCH, 1): sets("k_list", [1, {"a": 2.5}]),
}
ITS = {
    (BEGIN, 1): sets("k_mine", b"x"),
    (STEP, 2): sets("k_mine", [1, 2]),
    (EPOCH, 1): lambda run_context: run_context.original_args().pop("k_list"),
    ("on_eval_step_end", 1): stops("cut it short", "eval"),
    (STEP, 5): joins,
}
AFTER = {(STEP, 2): sets("k_after", 3), (STEP, 5): stops("me too")}
FIT = Plan(mode="train", epochs=3, batch_num=3, valid_batch_num=2, valid_frequency=1)


def of_the_run(log: Any) -> list[Any]:
    return [(entry.event.hook, entry.event.snapshot, entry.decision, entry.acks) for entry in log]


def test_a_run_with_a_remote_participant_is_the_run_with_it_in_process():
    trace: list[Any] = []
    here = play(
        [Script("a", BEFORE, trace), tuner("b", ITS, trace), Script("c", AFTER, trace)], FIT
    )
    remote: list[Any] = []
    with place() as there:
        visit = there.visit(tuner("b", ITS, remote))
        listed = [
            Script("a", BEFORE, remote),
            Remote("tuner", deadline=20),
            Script("c", AFTER, remote),
        ]
        played = play(listed, FIT, there.bus)
        error = visit.join()

    assert error is None
    assert remote == trace
    assert of_the_run(played.log) == of_the_run(here.log)


def test_hooks_every_and_filters_choose_the_turns():
    seen: list[Any] = []
    theirs = LambdaCallback(
        on_train_step_end=lambda run_context: seen.append(run_context.original_args().cur_step_num),
        on_train_step_begin=lambda run_context: seen.append("begin"),
        on_train_end=lambda run_context: seen.append("end"),
    )
    listed = Remote("tuner", hooks=[Hook.TRAIN_STEP_END, "on_train_end"], every=2)
    with place() as there:
        visit = there.visit(every(3, theirs))
        play([listed], PLAN, there.bus)
        visit.join()

    assert seen == [6, "end"]


@pytest.mark.parametrize("on_lost", ["detach", "stop", "raise"])
def test_who_never_comes_is_waited_for_until_the_deadline(on_lost, caplog):
    with place() as there:
        played = play([Remote("tuner", deadline=0.05, on_lost=on_lost)], PLAN, there.bus)

    decisions = [entry.decision for entry in played.log]
    assert "still in a hook" not in caplog.text
    if on_lost == "raise":
        assert isinstance(played.error, DeadlineExceeded)
        assert played.hooks == ["on_exception"]
    else:
        assert decisions[0].detached == ("tuner",)
        assert [stop.by for stop in decisions[0].stops] == ["tuner"] * (on_lost == "stop")
        assert played.hooks[-1] == "on_train_end"


@contextmanager
def asked(there: Place, listed: Any = None, **arguments: Any) -> Iterator[Any]:
    """A bare participant of a run, before its ack to the first event."""
    there.begin([listed or Remote("tuner", deadline=20, **arguments)])
    there.until_begun()
    with there.socket() as ws:
        welcome, turn = hear(ws), hear(ws)
        assert isinstance(welcome, Welcome) and isinstance(turn, Asked)
        yield ws, turn


def ok(turn: Asked, **more: Any) -> Answer:
    return Answer(**{"seq": turn.event.seq, "hook": turn.event.hook.value, **more})


def answer_on(ws: Any, turn: Asked) -> str:
    """Answer everything with ok; returns the code of the bye."""
    frame: Any = turn
    while isinstance(frame, Asked):
        say(ws, ok(frame))
        frame = hear(ws)
    assert isinstance(frame, Bye)
    return frame.code


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_process_is_left_behind_at_the_deadline(how):
    with place() as there, process(there.url, "sticks") as guest:
        assert guest.stdout and guest.stdin and guest.stderr
        comes = LambdaCallback(on_train_begin=lambda run_context: there.until_seated())
        there.begin([comes, Remote("tuner", deadline=2.0)])
        assert [guest.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        os.kill(guest.pid, how)
        played = there.end()
        os.kill(guest.pid, signal.SIGCONT)
        said = guest.communicate("\n", timeout=20)[1]

    lost = [entry for entry in played.log if entry.decision.detached]
    assert [(entry.step, entry.event.hook) for entry in lost] == [(3, Hook.TRAIN_STEP_END)]
    assert played.hooks[-1] == "on_train_end"
    assert not any(entry.decision.stops for entry in played.log)
    assert ("no ack within 2.0 s" in said) == (how == signal.SIGSTOP)


def test_a_peer_may_come_back_within_the_deadline_and_no_event_is_handled_twice():
    handled: list[Any] = []

    def act(run_context: Any) -> None:
        handled.append(run_context.event.seq)
        if len(handled) % 3 == 0:
            between.cut()

    act_on = dict.fromkeys((hook.value for hook in Hook if hook is not Hook.EXCEPTION), act)
    with place() as there, relay(there.port) as between:
        visit = there.visit(LambdaCallback(**act_on), url=f"ws://127.0.0.1:{between.port}")
        played = play([Remote("tuner", deadline=20)], PLAN, there.bus)
        error = visit.join()

    assert error is None
    assert handled == [entry.event.seq for entry in played.log]
    assert not any(entry.decision.detached for entry in played.log)


def test_a_guest_comes_back_to_a_service_that_was_restarted_while_it_was_in_a_hook():
    bus, inside, go, handled = EventBus(), threading.Event(), threading.Event(), list[int]()

    def act(run_context: Any) -> None:
        handled.append(run_context.original_args().cur_step_num)
        if len(handled) == 2:
            inside.set()
            go.wait(20)

    with serving(bus, tokens=[TOKEN]) as served:
        there = Place(bus, served.url)
        there.begin([Remote("tuner", deadline=20)])
        visit = there.visit(LambdaCallback(on_train_step_end=act))
        assert inside.wait(20)
    with serving(bus, f"127.0.0.1:{there.port}", [TOKEN]):
        go.set()
        played = there.end()
        error = visit.join()

    assert error is None
    assert handled == [1, 2, 3, 4, 5, 6]
    assert not any(entry.decision.detached for entry in played.log)


def test_an_ack_that_was_lost_with_the_connection_is_sent_again():
    with place() as there:
        there.begin([Remote("tuner", deadline=20)])
        there.until_begun()
        mine = Hello(version=(1, 0), role="participant", slot="tuner", seat="mine")
        with there.socket(mine) as lost, there.socket(mine) as ws:
            turns = [hear(ws) for _ in range(2)][1:]
            say(ws, ok(turns[0], stop="once"))
            say(ws, ok(turns[0], stop="once"))
            code = answer_on(ws, hear(ws))
            with pytest.raises(ConnectionClosed):
                while True:
                    hear(lost)
        played = there.end()

    assert code == Code.ENDED
    assert [len(entry.decision.stops) for entry in played.log] == [1, 0]


def test_of_many_acks_the_first_counts_and_others_have_no_effect():
    with place() as there, asked(there) as (ws, turn):
        for _ in range(50):
            say(ws, ok(turn))
        for k in range(20):
            say(ws, ok(turn, stop=f"conflict {k}"))
        code = answer_on(ws, hear(ws))
        refused = there.slot.refused
        played = there.end()

    assert code == Code.ENDED
    assert not any(entry.decision.stops or entry.acks for entry in played.log)
    assert [verdict for verdict, _ in refused] == [Verdict.CONFLICT] * 20


def test_acks_that_count_are_not_limited_in_their_rate():
    steps = Hello(version=(1, 0), role="participant", slot="tuner", hooks=["on_train_step_end"])
    with place() as there:
        there.begin([Remote("tuner", deadline=20)], Plan(mode="train", epochs=1, batch_num=2000))
        there.until_begun()
        with there.socket(steps) as ws:
            hear(ws)
            code = answer_on(ws, hear(ws))
        played = there.end()

    assert code == Code.ENDED
    assert played.params["cur_step_num"] == 2000


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq": 1},
        {"seq": 2**53},
        {"hook": "on_train_end"},
        {"hook": "nonsense"},
        {"run_id": "other"},
        {"incarnation": 1},
    ],
)
def test_the_third_ack_to_what_was_not_asked_ends_the_connection(wrong):
    with place() as there, asked(there) as (ws, turn):
        for _ in range(3):
            say(ws, ok(turn, **{"stop": "foreign", **wrong}))
        bye = hear(ws)
        with pytest.raises(ConnectionClosed) as closed:
            hear(ws)
        with there.socket() as again:
            hear(again)
            code = answer_on(again, hear(again))
        played = there.end()

    assert closed.value.rcvd is not None
    assert (bye.code, closed.value.rcvd.code) == (Code.FOREIGN, 1008)
    assert code == Code.ENDED
    assert not any(entry.decision.stops for entry in played.log)


@pytest.mark.parametrize("frame", [Credit(upto=3), HELLO])
def test_what_is_no_participants_frame_ends_the_connection_and_the_slot_is_free_again(frame):
    with place() as there, asked(there) as (ws, turn):
        say(ws, frame)
        bye = hear(ws)
        until(lambda: there.slot._peer is None)
        with there.socket() as again:
            hear(again)
            code = answer_on(again, hear(again))
        there.end()

    assert (bye.code, code) == (Code.BAD_FRAME, Code.ENDED)


def test_a_fetch_is_answered_in_turn_and_the_third_out_of_turn_ends_the_connection():
    first = Hello(version=(1, 0), role="participant", slot="first")
    with place() as there:
        there.begin([Remote("first", deadline=20, hooks=["on_train_begin"]), Remote("tuner")])
        there.until_begun()
        with there.socket() as ws, there.socket(first) as other:
            hear(ws), hear(other)
            turn = hear(other)
            say(other, Fetch(number=7))
            chunk = hear(other)
            for _ in range(3):
                say(ws, Fetch(number=1))
            bye = hear(ws)
            say(other, ok(turn))
        with there.socket() as again:
            hear(again)
            code = answer_on(again, hear(again))
        there.end()

    assert (chunk.number, chunk.data) == (7, b"") and "train_network" in chunk.error
    assert (bye.code, code) == (Code.FOREIGN, Code.ENDED)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"token": "x" * 43}, Code.FORBIDDEN),
        ({"token": WATCHES.value}, Code.FORBIDDEN),
        ({"slot": "other"}, Code.NO_SLOT),
        ({}, Code.TAKEN),
    ],
)
def test_a_wrong_token_scope_or_slot_and_a_second_peer_are_refused_at_once(arguments, code):
    with place() as there, asked(there) as (ws, turn):
        refusal = there.visit(Callback(), **arguments).join()
        answer_on(ws, turn)
        there.end()

    assert isinstance(refusal, RemoteError) and refusal.code == code


def test_a_guest_waits_for_the_run_but_not_for_ever():
    with place() as there:
        early = there.visit(Callback(), retry_seconds=0.1).join()

    assert isinstance(early, RemoteError) and early.code == Code.UNKNOWN_RUN


class Raises(Callback):
    exits: list[Any]

    def on_train_step_end(self, run_context: Any) -> None:
        run_context.original_args().k_lost = 1
        raise ValueError("bad luck")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.exits = [error]


@pytest.mark.parametrize("on_lost", ["detach", "stop", "raise"])
def test_an_error_in_its_hook_leaves_the_guest_and_the_slots_policy_acts(on_lost):
    guest = Raises()
    with place() as there:
        visit = there.visit(guest)
        played = play([Remote("tuner", deadline=20, on_lost=on_lost)], PLAN, there.bus)
        error = visit.join()

    assert isinstance(error, ValueError) and guest.exits == [error]
    assert "k_lost" not in played.params
    if on_lost == "raise":
        assert isinstance(played.error, RemoteFailure) and "bad luck" in str(played.error)
        return
    ack = next(entry for entry in played.log if entry.acks)
    assert (ack.step, ack.acks[0].error) == (1, "ValueError: bad luck")
    assert ack.decision.detached == (("tuner",) if on_lost == "detach" else ())
    assert bool(ack.decision.stops) == (on_lost == "stop")


def test_a_callback_whose_policy_is_stop_asks_the_run_to_stop():
    guest = Raises()
    guest.on_error = "stop"
    with place() as there:
        visit = there.visit(guest)
        played = play([Remote("tuner", deadline=20)], PLAN, there.bus)
        visit.join()

    stops = [entry.decision.stops[0] for entry in played.log if entry.decision.stops]
    assert [(stop.reason, stop.interrupts) for stop in stops] == [
        ("tuner failed: ValueError: bad luck", True)
    ]


def test_what_cannot_be_assigned_in_process_cannot_from_elsewhere():
    raised: list[BaseException] = []

    def act(run_context: Any) -> None:
        for key in ("cur_step_num", "learning_rate"):
            try:
                run_context.original_args()[key] = 1
            except (ReadOnlyParam, NotTraced) as error:
                raised.append(error)

    with place() as there:
        visit = there.visit(LambdaCallback(on_train_begin=act))
        play([Remote("tuner", deadline=20)], PLAN, there.bus)
        visit.join()

    assert [type(error) for error in raised] == [ReadOnlyParam, NotTraced]


@pytest.mark.parametrize("patch", [{"cur_step_num": b"\x01"}, {"k": b"\xc1"}, {"none": None}])
def test_a_hostile_patch_is_the_participants_error_and_changes_nothing(patch):
    with place() as there, asked(there) as (ws, turn):
        say(ws, ok(turn, patch=patch))
        bye = hear(ws)
        played = there.end()

    assert bye.code == Code.DETACHED
    assert played.log[0].decision.detached == ("tuner",)
    assert not any(entry.decision.patches for entry in played.log)


def test_a_patch_that_is_too_large_to_travel_is_the_guests_error():
    with place() as there:
        visit = there.visit(LambdaCallback(on_train_begin=sets("k", bytes(70_000))))
        played = play([Remote("tuner", deadline=20)], PLAN, there.bus)
        error = visit.join()

    assert "at most 65536 bytes" in str(error)
    assert played.log[0].acks[0].error == f"FrameError: {error}"


def test_async_hooks_run_on_an_event_loop_of_the_guest():
    seen: list[int] = []

    class Waits(Callback):
        async def on_train_step_end(self, run_context: Any) -> None:
            await anyio.lowlevel.checkpoint()
            seen.append(run_context.original_args().cur_step_num)

    with place() as there:
        visit = there.visit(Waits())
        play([Remote("tuner", deadline=20)], PLAN, there.bus)
        assert visit.join() is None

    assert seen == [1, 2, 3, 4, 5, 6]


async def test_the_async_twin_takes_part_and_leaves_when_it_is_cancelled():
    with place() as there, anyio.fail_after(20):
        there.begin([Remote("tuner", deadline=20)])
        acted = threading.Event()
        async with anyio.create_task_group() as group:
            first = LambdaCallback(on_train_step_end=lambda run_context: acted.set())
            await group.start(started, there, first)
            await anyio.to_thread.run_sync(acted.wait)
            group.cancel_scope.cancel()
        await arun_callback(there.url, Callback(), token=TOKEN.value, slot="tuner")
        played = await anyio.to_thread.run_sync(there.end)

    assert played.hooks[-1] == "on_train_end"
    assert not any(entry.decision.detached for entry in played.log)


async def started(there: Place, callback: Callback, *, task_status: Any) -> None:
    task_status.started()
    await arun_callback(there.url, callback, token=TOKEN.value, slot="tuner")


def test_without_a_slot_the_callback_observes():
    seen: list[Any] = []
    theirs = LambdaCallback(
        on_train_step_end=lambda run_context: seen.append(run_context.original_args().cur_step_num)
    )
    with place() as there, asked(there) as (ws, turn):
        visit = there.visit(every(2, theirs), slot=None, token=WATCHES.value)
        until(lambda: there.bus.runs["run"]._observers)
        answer_on(ws, turn)
        there.end()
        assert visit.join() is None

    assert seen == [2, 4, 6]


def test_a_remote_says_what_is_wrong_with_its_arguments():
    for wrong in (
        {"slot": "Tuner"},
        {"deadline": 0},
        {"on_lost": "wait"},
        {"hooks": ["step"]},
        {"every": 2, "hooks": ["on_train_end"]},
    ):
        with pytest.raises(ArgumentError):
            Remote(**{"slot": "tuner", **wrong})  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ArgumentError, match="stands in the list twice"):
        play([Remote("tuner"), Remote("tuner")], PLAN)
    with pytest.raises(ArgumentError, match="list the callback itself"):
        Roster([Remote("tuner")], replays=True).enter(Ledger(), lambda mode: False)
