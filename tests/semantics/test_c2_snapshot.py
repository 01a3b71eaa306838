"""C2: participant k sees the snapshot plus the patches of those before it; own keys persist."""

from hypothesis import given, settings, strategies as st

from railbus.schemas import Hook, Plan

from .synthetic import Script, play

HOOKS = [hook.value for hook in Hook if hook is not Hook.EXCEPTION]
WRITES = st.dictionaries(
    st.tuples(st.sampled_from(HOOKS), st.integers(1, 3)),
    st.tuples(st.sampled_from(["ka", "kb", "kc"]), st.one_of(st.none(), st.integers(0, 9))),
    max_size=6,
)


def act(key, value):
    def write(run_context):
        cb_params = run_context.original_args()
        if value is not None:
            cb_params[key] = value
        elif key in cb_params:
            del cb_params[key]

    return write


@settings(max_examples=80)
@given(st.lists(WRITES, min_size=1, max_size=3))
def test_each_sees_the_writes_of_all_before_it_and_of_all_earlier_events(scripts):
    trace = []
    callbacks = [
        Script(f"p{k}", {when: act(*what) for when, what in script.items()}, trace)
        for k, script in enumerate(scripts)
    ]
    plan = Plan(mode="train", epochs=2, batch_num=2, valid_batch_num=1, valid_frequency=1)

    played = play(callbacks, plan)

    expected, keys = [], {}
    counts = [{} for _ in scripts]
    for entry in played.log:
        hook = entry.event.hook.value
        for k, script in enumerate(scripts):
            expected.append((f"p{k}", entry.event.seq, hook, dict(sorted(keys.items()))))
            count = counts[k][hook] = counts[k].get(hook, 0) + 1
            key, value = script.get((hook, count), (None, None))
            if value is not None:
                keys[key] = value
            else:
                keys.pop(key, None)
    assert trace == expected


def test_a_snapshot_holds_what_was_so_before_the_event_and_the_decision_what_it_changed():
    trace = []
    callback = Script("p", {("on_train_step_end", 1): act("ka", 5)}, trace)

    played = play([callback], Plan(mode="train", batch_num=2))

    entry = next(e for e in played.log if e.event.hook is Hook.TRAIN_STEP_END)
    assert "ka" not in entry.event.cb_params
    assert entry.decision.patches == (("Script", {"ka": b"\x05"}),)
    later = played.log[entry.event.seq + 1 :]
    assert later and all(one.event.cb_params.ka == 5 for one in later)


def test_what_a_failing_hook_wrote_never_happened():
    def fail(run_context):
        run_context.original_args().ka = 1
        raise ValueError("bad luck")

    class Detached(Script):
        on_error = "detach"

    trace = []
    callbacks = [
        Detached("first", {("on_train_step_end", 1): fail}, trace),
        Script("second", {}, trace),
    ]

    played = play(callbacks, Plan(mode="train", batch_num=2))

    assert played.error is None
    assert all(own == {} for name, _, _, own in trace if name == "second")
