"""C4: a unit that began ends, and there is exactly one terminal event, which says why."""

from collections import Counter

from hypothesis import given, settings, strategies as st

from railbus.schemas import Hook, Plan
from railbus.schemas.lifecycle import verify

from .synthetic import Script, play

HOOKS = [hook.value for hook in Hook if hook is not Hook.EXCEPTION]
PLANS = st.builds(
    Plan,
    mode=st.sampled_from(["train", "train", "eval"]),
    epochs=st.integers(1, 3),
    batch_num=st.integers(1, 3),
    valid_batch_num=st.integers(1, 2),
    valid_frequency=st.sampled_from([None, 1, 2, (1, 3)]),
)
ACTS = st.dictionaries(
    st.tuples(st.sampled_from(HOOKS), st.integers(1, 3)),
    st.sampled_from(["stop", "train", "raise"]),
    max_size=3,
)


def act(what):
    def run(run_context):
        if what == "raise":
            raise ValueError("bad luck")
        run_context.request_stop(what, scope="train" if what == "train" else None)

    return run


@settings(max_examples=150)
@given(PLANS, st.lists(ACTS, min_size=1, max_size=3))
def test_units_are_closed_and_one_terminal_event_ends_the_run(plan, scripts):
    callbacks = [
        Script("p", {when: act(what) for when, what in script.items()}, []) for script in scripts
    ]

    played = play(callbacks, plan)

    verify(plan, played.log)
    counts = Counter(played.hooks)
    terminal = [hook for hook in played.hooks if plan.ends_with(Hook(hook))]
    assert terminal == played.hooks[-1:]
    assert played.log[-1].event.cb_params.status in ("completed", "stopped", "failed")
    assert (played.error is not None) == (played.hooks[-1] == "on_exception")
    if played.error is None:
        for begin in (name for name in HOOKS if name.endswith("begin")):
            assert counts[begin] == counts[begin.replace("begin", "end")], begin


def test_a_stopped_epoch_still_gets_its_due_validation():
    plan = Plan(mode="train", epochs=2, batch_num=3, valid_batch_num=1, valid_frequency=1)
    callback = Script("p", {("on_train_step_end", 2): act("stop")}, [])

    played = play([callback], plan)

    assert (
        played.hooks[-8:]
        == [
            "on_train_step_end",
            "on_eval_begin",
            "on_eval_epoch_begin",
            "on_eval_step_begin",
            "on_eval_step_end",
            "on_eval_epoch_end",
            "on_eval_end",
            "on_train_epoch_end",
            "on_train_end",
        ][-8:]
    )


def test_a_step_that_was_asked_to_stop_at_its_begin_still_ends():
    callback = Script("p", {("on_train_step_begin", 2): act("stop")}, [])

    played = play([callback], Plan(mode="train", batch_num=5))

    assert played.hooks.count("on_train_step_end") == 2


def test_on_exception_takes_the_place_of_an_on_train_end_that_raised():
    callback = Script("p", {("on_train_end", 1): act("raise")}, [])

    played = play([callback], Plan(mode="train", batch_num=1))

    assert played.hooks[-2:] == ["on_train_epoch_end", "on_exception"]
    assert played.log[-1].event.cb_params.status == "failed"
