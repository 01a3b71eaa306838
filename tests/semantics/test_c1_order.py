"""C1: participant k sees event n after participant k-1 acked it, n+1 after n was committed."""

from hypothesis import given, settings, strategies as st

from railbus.schemas import Hook, Plan
from railbus.subscribers import Callback, RunContext

from .synthetic import Script, play

PLANS = st.builds(
    Plan,
    mode=st.sampled_from(["train", "eval"]),
    epochs=st.integers(1, 3),
    batch_num=st.integers(0, 4),
    valid_batch_num=st.integers(0, 3),
    valid_frequency=st.sampled_from([None, 1, 2, (1,), (2, 3)]),
)


@settings(max_examples=60)
@given(PLANS, st.integers(0, 4))
def test_every_participant_sees_every_event_in_the_order_of_the_list(plan, participants):
    trace = []
    callbacks = [Script(f"p{k}", {}, trace) for k in range(participants)]

    played = play(callbacks, plan)

    seqs = [entry.event.seq for entry in played.log]
    assert seqs == list(range(len(seqs)))
    assert [seen[:3] for seen in trace] == [
        (f"p{k}", entry.event.seq, entry.event.hook.value)
        for entry in played.log
        for k in range(participants)
    ]


def test_nobody_sees_an_event_before_the_one_ahead_of_it_is_committed():
    committed = []

    class Watcher(Callback):
        def on_train_step_end(self, run_context: RunContext) -> None:
            committed.append((run_context.event.seq, log().entries()[-1].event.seq))

        async def on_train_step_begin(self, run_context: RunContext) -> None:
            committed.append((run_context.event.seq, log().entries()[-1].event.seq))

    from railbus.bus import EventBus

    bus = EventBus()

    def log():
        return bus.runs["run"]

    play([Watcher(), Watcher()], Plan(mode="train", batch_num=5), bus)

    assert len(committed) == 20
    assert all(newest == seq - 1 for seq, newest in committed)


def test_def_and_async_def_hooks_keep_the_order_of_the_list():
    order = []

    class Plain(Callback):
        def on_train_step_end(self, run_context: RunContext) -> None:
            order.append((run_context.event.seq, "plain"))

    class Async(Callback):
        async def on_train_step_end(self, run_context: RunContext) -> None:
            order.append((run_context.event.seq, "async"))

    played = play([Plain(), Async(), Plain(), Async()], Plan(mode="train", batch_num=3))

    steps = [e.event.seq for e in played.log if e.event.hook is Hook.TRAIN_STEP_END]
    assert order == [(seq, kind) for seq in steps for kind in ("plain", "async", "plain", "async")]
