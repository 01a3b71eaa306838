"""`diff` and `acks_of`: where two streams part, and every ack of one."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from railbus.bus import Events
from railbus.schemas import Gap, Plan, StopRequest, pack, unpack
from railbus.schemas.codec import entry, join
from railbus.schemas.entries import split
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Ack, Committed
from railbus.subscribers import (
    EarlyStopping,
    LambdaCallback,
    LossMonitor,
    StopAtStep,
    acks_of,
    diff,
    replay,
    synthesize,
)

from ..semantics.synthetic import Script, play

replace = msgspec.structs.replace


@pytest.fixture
def made() -> Events:
    return synthesize(3, 4, [1.0, 0.5, 0.25], {"eval_loss": [3.0, 2.0, 1.0]}, learning_rate=0.5)


def changed(stream: Events, seq: int, **values: Any) -> Events:
    """The same with other values in the snapshot of one event; `...` removes a key."""
    return edited(stream, seq, lambda one: _with(one, values))


def _with(one: Committed, values: dict[str, Any]) -> Committed:
    entries = split(one.event.snapshot)
    for key, value in values.items():
        if value is ...:
            del entries[key]
        else:
            entries[key] = pack(value)
    snapshot = join([entry(key, value) for key, value in entries.items()])
    return Committed(replace(one.event, snapshot=snapshot), one.decision, one.acks)


def edited(stream: Events, seq: int, edit: Any) -> Events:
    entries = list(stream.entries)
    entries[seq] = edit(entries[seq])
    return Events(stream.about, tuple(entries))


def answered(stream: Events, seq: int, **said: Any) -> Events:
    def edit(one: Committed) -> Committed:
        event = one.event
        ack = Ack(run_id=event.run_id, seq=event.seq, hook=event.hook, by="Tuner", **said)
        return Committed(event, one.decision, (ack,), one.step, one.epoch)

    return edited(stream, seq, edit)


def test_a_stream_does_not_differ_from_itself(made):
    assert diff(made, made) is None
    assert diff(made, Events(made.about, tuple(made.entries))) is None


def test_times_and_names_are_ignored_unless_asked_for(made):
    again = synthesize(
        3,
        4,
        [1.0, 0.5, 0.25],
        {"eval_loss": [3.0, 2.0, 1.0]},
        learning_rate=0.5,
        seconds_per_step=3,
        run_id="another",
    )

    assert diff(made, again) is None
    found = diff(made, again, ignore=())
    assert found is not None
    assert (found.seq, found.field, found.left, found.right) == (
        0,
        "run_id",
        "synthetic",
        "another",
    )


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        (0.0, -0.0, ""),
        (1, 1.0, ""),
        (True, 1, ""),
        (np.float32(1), np.float64(1), ""),
        (math.nan, 1.0, ""),
        ([1, 2, 3], [1, 5, 3], "[1]"),
        ([1], [1, 2], "[1]"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "['a']['b']"),
        (np.zeros((2, 3)), np.eye(2, 3)[::-1], "[0, 1]"),
        (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), "[0]"),
        (np.zeros(2, np.float32), np.zeros(2, np.float64), ""),
        (np.zeros(2), np.zeros(3), ""),
    ],
)
def test_values_are_compared_by_bits_and_the_place_is_named(made, left, right, path):
    found = diff(changed(made, 7, value=left), changed(made, 7, value=right))

    assert found is not None
    assert (found.seq, found.hook) == (7, "on_train_step_end")
    assert found.field == f"cb_params.value{path}"


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), np.full(3, np.nan), -0.0, None])
def test_equal_bits_are_equal(made, value):
    assert diff(changed(made, 7, value=value), changed(made, 7, value=value)) is None


def test_nans_of_different_bits_differ(made):
    other = np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]

    assert diff(changed(made, 7, value=np.float32("nan")), changed(made, 7, value=other))


def test_a_key_that_one_side_lacks_is_a_difference(made):
    found = diff(made, changed(made, 7, learning_rate=...))

    assert str(found) == (
        "#7 on_train_step_end cb_params.learning_rate: expected np.float32(0.5), got nothing"
    )


def test_a_tolerance_is_absolute_and_of_its_field_only(made):
    near = changed(made, 7, net_outputs=np.float32(1.0 + 1e-5), learning_rate=np.float32(0.5))
    loss = changed(made, 7, net_outputs=np.float32(1.0), learning_rate=np.float32(0.5))

    assert diff(loss, near, tolerances={"net_outputs": 1e-4}) is None
    for too_strict in ({"net_outputs": 1e-6}, {"learning_rate": 1.0}):
        found = diff(loss, near, tolerances=too_strict)
        assert found is not None
        assert found.field == "cb_params.net_outputs"


def test_a_tolerance_reaches_into_arrays_and_patches(made):
    a, b = np.array([1.0, math.nan]), np.array([1.0 + 1e-5, math.nan])

    assert diff(changed(made, 7, v=a), changed(made, 7, v=b), tolerances={"v": 1e-4}) is None
    patches = [answered(made, 7, patch={"v": pack(one)}) for one in (a, b)]
    assert diff(*patches, tolerances={"v": 1e-4}) is None
    found = diff(*patches)
    assert found is not None
    assert (found.by, found.field) == ("Tuner", "patch.v[0]")


def test_a_different_reason_is_named_with_the_subscriber(made):
    stops = [StopRequest(by="Tuner", at=12, reason=reason, scope="train") for reason in ("a", "b")]

    found = diff(*(answered(made, 12, stop=stop) for stop in stops))

    assert str(found) == "#12 on_eval_step_begin Tuner stop.reason: expected 'a', got 'b'"


def test_an_ack_that_says_more_on_one_side_is_a_difference(made):
    stop = StopRequest(by="Tuner", at=12, reason="enough", scope="train")
    cases: list[tuple[dict[str, Any], str, Any]] = [
        ({"stop": stop}, "stop", "enough"),
        ({"patch": {"rate": pack(0.5)}}, "patch.rate", 0.5),
        ({"error": "ValueError: no"}, "error", "ValueError: no"),
    ]
    for said, field, left in cases:
        found = diff(answered(made, 12, **said), made)

        assert found is not None
        assert (found.by, found.field, found.left) == ("Tuner", field, left)


def test_a_removed_key_is_not_an_unwritten_one(made):
    found = diff(answered(made, 12, patch={"rate": None}), made)

    assert str(found).endswith("Tuner patch.rate: expected 'removed', got nothing")


def test_decisions_count_beside_acks(made):
    def stopped(one: Committed) -> Committed:
        stop = StopRequest(by="operator", at=12, reason="enough", scope="train")
        return Committed(one.event, replace(one.decision, stops=(stop,)), one.acks)

    found = diff(made, edited(made, 12, stopped))

    assert found is not None
    assert (found.field, found.left, found.right) == ("decision.stops[0]", None, "enough")


def test_a_stream_that_ends_earlier_differs_at_its_end(made):
    found = diff(made, Events(made.about, made.entries[:9]))

    assert str(found) == (
        "#9 on_train_step_end event: expected 'on_train_step_end #9', got 'the end of the stream'"
    )


def test_gaps_are_compared_as_what_they_are(made):
    gap = Gap(run_id="synthetic", first=3, last=4, reason="slow")
    with_gap = Events(made.about, (*made.entries[:3], gap, *made.entries[5:]))

    assert diff(with_gap, with_gap) is None
    found = diff(made, with_gap)
    assert found is not None
    assert found.right == "gap #3 to #4 (slow)"


def test_the_context_is_three_events_around_on_both_sides(made):
    found = diff(made, changed(made, 7, value=1))

    assert found is not None
    for side in found.context:
        assert [one.event.seq for one in side] == [4, 5, 6, 7, 8, 9, 10]  # type: ignore[union-attr]
    assert "    on_train_step_begin #4" in found.report()


def test_ignore_takes_names_not_a_name(made):
    with pytest.raises(ArgumentError, match="collection"):
        diff(made, made, ignore="time_ns")


def test_every_ack_of_a_run_is_told_in_order():
    trace: list[Any] = []
    acts = {("on_train_step_end", 3): lambda run: run.original_args().update(k=1)}
    callbacks = [Script("Script", acts, trace), Script("Script#2", {}, trace)]
    played = play(callbacks, Plan(mode="train", epochs=2, batch_num=3))

    found = list(acks_of(recorded(played)))

    assert [(ack.by, ack.seq, ack.hook.value) for ack in found] == [one[:3] for one in trace]
    assert [ack.patch and unpack(ack.patch["k"] or b"") for ack in found if ack.patch] == [1]


def test_a_detached_callback_acks_no_more():
    def fail(run_context: Any) -> None:
        raise RuntimeError("bad luck")

    trace: list[Any] = []
    failing = Script("Script", {("on_train_step_end", 2): fail}, trace)
    failing.on_error = "detach"
    played = play(
        [failing, Script("Script#2", {}, trace)], Plan(mode="train", epochs=1, batch_num=4)
    )

    found = list(acks_of(recorded(played)))

    assert [(ack.by, ack.seq) for ack in found] == [one[:2] for one in trace]
    assert [ack.error for ack in found if ack.error] == ["RuntimeError: bad luck"]


def recorded(played: Any) -> Events:
    """What `play` committed, as a stream."""
    from railbus.bus import About

    roles = played.publisher.sequencer.roles
    about = About(run_id="run", incarnation=0, plan=Plan(mode="train"), roles=roles)
    return Events(about, tuple(played.log))


def test_a_replay_is_compared_with_its_record_by_what_the_callbacks_said(made):
    record = replay(made, [LossMonitor(0), EarlyStopping(patience=1)])
    stricter = replay(record, [LossMonitor(0), EarlyStopping(patience=1, min_delta=1.5)])

    found = diff(record, stricter)

    assert str(found) == (
        "#32 on_train_epoch_end EarlyStopping stop: expected None, got 'epoch 2: eval_loss has "
        "not improved in 1 checks, best is 3 at epoch 1'"
    )


def test_plain_oks_of_a_callback_that_one_side_does_not_list_are_no_difference(made):
    one = replay(made, [LossMonitor(0)])
    two = replay(made, [LossMonitor(0), StopAtStep(99)])

    assert diff(one, two) is None


def test_a_callback_that_no_longer_takes_a_hook_differs(made):
    def nothing(run_context: Any) -> None:
        pass

    one = replay(made, LambdaCallback(on_train_begin=nothing, on_train_step_end=nothing))
    two = replay(made, LambdaCallback(on_train_begin=nothing))

    found = diff(one, two)

    assert str(found) == "#3 on_train_step_end LambdaCallback ack: expected 'ok', got nothing"


def test_the_same_gap_of_two_runs_is_no_difference():
    def run(name: str, last: int) -> Events:
        made = synthesize(2, 2, [2, 1], run_id=name)
        entries = list(made)
        gap = Gap(run_id=name, first=3, last=last, reason="slow")
        return Events(made.about, (*entries[:3], gap, *entries[last + 1 :]))

    assert diff(run("one", 4), run("two", 4)) is None
    found = diff(run("one", 4), run("two", 5))
    assert found is not None and found.seq == 3


@pytest.mark.parametrize("tolerance", [-1.0, math.nan])
def test_a_tolerance_that_is_none_is_refused(made, tolerance):
    with pytest.raises(ArgumentError, match="tolerance of 'net_outputs' must be at least 0"):
        diff(made, made, tolerances={"net_outputs": tolerance})
