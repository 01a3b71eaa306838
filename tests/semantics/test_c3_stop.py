"""C3: a stop is never lost and never taken back, and nothing new begins after its commit."""

from hypothesis import given, settings, strategies as st

from railbus.schemas import Hook, Plan
from railbus.schemas.lifecycle import verify

from .synthetic import Played, Script, play

TRAIN_HOOKS = [hook.value for hook in Hook if hook.mode == "train"]
PLAN = Plan(mode="train", epochs=3, batch_num=2, valid_batch_num=2, valid_frequency=2)


def stop(run_context):
    run_context.request_stop("because")


@settings(max_examples=100)
@given(st.sampled_from(TRAIN_HOOKS), st.integers(1, 6), st.integers(0, 2))
def test_after_the_commit_of_a_stop_no_step_and_no_epoch_begins(hook, occurrence, asker):
    trace = []
    callbacks = [
        Script(f"p{k}", {(hook, occurrence): stop} if k == asker else {}, trace) for k in range(3)
    ]

    played = play(callbacks, PLAN)

    verify(PLAN, played.log)
    stopped = [e for e in played.log if e.decision.stops]
    if not stopped:
        assert sum(name == hook for name in played.hooks) < occurrence
        return
    after = played.hooks[stopped[0].event.seq + 1 :]
    assert Hook.TRAIN_STEP_BEGIN.value not in after
    assert Hook.TRAIN_EPOCH_BEGIN.value not in after
    assert len({name for name, seq, *_ in trace if seq == stopped[0].event.seq}) == 3
    if hook != "on_train_end":
        ended = played.log[-1].event.cb_params
        by = f"Script#{asker + 1}" if asker else "Script"
        assert (ended.status, ended.stop_reason, ended.stop_by) == ("stopped", "because", by)


def test_the_rest_of_the_list_sees_the_event_and_that_a_stop_was_asked():
    seen = []

    def look(run_context):
        seen.append(run_context.get_stop_requested())

    trace = []
    before = Script("before", {("on_train_step_end", 1): look}, trace)
    asker = Script("asker", {("on_train_step_end", 1): stop}, trace)
    after = Script("after", {("on_train_step_end", 1): look}, trace)

    play([before, asker, after], PLAN)

    assert seen == [False, True]


def test_a_stop_in_a_validation_cuts_it_and_training_goes_on():
    callback = Script("p", {("on_eval_step_end", 1): stop}, [])

    played = play([callback], PLAN)

    assert played.hooks.count("on_eval_step_end") == 1
    assert played.hooks.count("on_train_epoch_end") == 3
    assert played.log[-1].event.cb_params.status == "completed"


def test_scope_train_in_a_validation_cuts_it_and_stops_training_too():
    callback = Script(
        "p", {("on_eval_begin", 1): lambda context: context.request_stop("x", scope="train")}, []
    )

    played = play([callback], PLAN)

    assert "on_eval_step_begin" not in played.hooks
    assert played.hooks.count("on_train_epoch_end") == 2
    assert played.log[-1].event.cb_params.status == "stopped"


def test_a_stop_from_outside_is_part_of_the_next_commit():
    played = Played()

    def outside(run_context):
        played.publisher.sequencer.request_stop("operator", "from outside")

    play([Script("p", {("on_train_step_end", 2): outside}, [])], PLAN, played=played)

    stopped = next(e for e in played.log if e.decision.stops)
    assert stopped.event.hook is Hook.TRAIN_STEP_END
    assert stopped.decision.stops[0].by == "operator"
    assert played.hooks.count("on_train_step_end") == 2


def test_a_stop_outlives_the_error_of_the_hook_that_asked_for_it():
    def stop_and_fail(run_context):
        run_context.request_stop("because")
        raise ValueError("bad luck")

    class Detached(Script):
        on_error = "detach"

    played = play([Detached("p", {("on_train_step_end", 1): stop_and_fail}, [])], PLAN)

    assert played.hooks.count("on_train_step_end") == 1
    assert played.log[-1].event.cb_params.stop_reason == "because"
