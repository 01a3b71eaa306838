"""C5: events, snapshots, acks and states are those of lockstep, however far the device ran ahead."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from railbus.trainer import RunAhead

from .c5 import HOOKS, KINDS, Act, bits, make_data, trace

EXAMPLES = max(300, settings().max_examples)

WHAT = st.one_of(
    st.tuples(st.just("stop"), st.sampled_from([None, None, "train"])),
    st.tuples(st.sampled_from(["set", "set", "delete"]), st.sampled_from(["ka", "kb"])),
    st.tuples(st.just("rate"), st.sampled_from([0.0, 0.05, 0.3])),
    st.tuples(st.just("scale"), st.sampled_from([0.5, -1.0])),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("eval"), st.none()),
    st.tuples(st.just("save"), st.none()),
    st.tuples(st.just("raise"), st.none()),
)
STEPS = [hook for hook in HOOKS if "_step_" in hook]
WHERE = st.tuples(st.sampled_from(HOOKS + 2 * STEPS), st.integers(1, 12))
SCRIPTS = st.lists(
    st.tuples(
        st.dictionaries(WHERE, WHAT, max_size=5),
        st.sampled_from(["raise", "raise", "stop", "detach"]),
    ),
    min_size=1,
    max_size=3,
)
SHAPES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KINDS)),
        "data": st.sampled_from(["list", "arrays", "renewed", "iterator", "failing"]),
        "samples": st.integers(1, 36),
        "epochs": st.integers(1, 3),
        "initial": st.integers(0, 2),
        "valid": st.sampled_from([0, 0, 3, 9, 12]),
        "frequency": st.sampled_from([1, 2, [1], [2, 3]]),
        "sink": st.booleans(),
    }
)
AHEAD = st.fixed_dictionaries(
    {"block_steps": st.none() | st.integers(1, 7), "ahead": st.integers(0, 3)}
)


@settings(max_examples=EXAMPLES)
@given(SHAPES, SCRIPTS, AHEAD, st.booleans())
def test_a_run_ahead_is_the_run_in_lockstep(tmp_path_factory, shape, scripts, ahead, fuse):
    folder = tmp_path_factory.getbasetemp()
    for script, _ in scripts:
        script.update({w: ("save", folder / "c5") for w, (a, _) in script.items() if a == "save"})

    lockstep = trace(shape, scripts, RunAhead(block_steps=1, ahead=0, fuse=fuse))
    found = trace(shape, scripts, RunAhead(**ahead, fuse=fuse))

    for key, value in lockstep.items():
        assert found[key] == value, key
    assert found.keys() == lockstep.keys()


def run(script: dict[Any, Any], kind: str = "noisy", **ahead: Any) -> tuple[Act, Any, Any]:
    """A training of 18 steps; its callback, its last state and its statistics."""
    act = Act(script, "raise")
    trainer = KINDS[kind].reset(RunAhead(**ahead))
    stats = trainer.train(2, make_data("list", 36), act).stats
    return act, bits(trainer._state), stats


@pytest.mark.parametrize("fuse", [True, False])
def test_a_stop_inside_of_a_block_leaves_statistics_and_keys_of_that_step(fuse):
    script = {("on_train_step_end", 5): ("stop", None)}

    _, wanted, _ = run(script, block_steps=1, ahead=0, fuse=fuse)
    act, found, stats = run(script, block_steps=9, ahead=2, fuse=fuse)

    assert found == wanted
    assert stats.rollbacks == 1 and stats.steps_again == 5
    assert act.counts["on_train_step_end"] == 5


@pytest.mark.parametrize("fuse", [True, False])
def test_the_state_looked_at_inside_of_a_block_is_that_of_the_step(fuse):
    script = {("on_train_step_end", k): ("look", None) for k in range(1, 19)}

    wanted, _, _ = run(script, block_steps=1, ahead=0, fuse=fuse)
    act, _, stats = run(script, block_steps=9, ahead=2, fuse=fuse)

    assert act.seen == wanted.seen
    assert len({str(one) for one in act.seen if isinstance(one, list)}) == 18
    assert stats.rollbacks == 0


def test_a_change_at_the_begin_of_a_step_is_used_by_that_very_step():
    script = {("on_train_step_begin", 4): ("rate", 0.0), ("on_train_step_end", 4): ("look", None)}
    before = {("on_train_step_end", 3): ("look", None)}

    act, _, _ = run(script, "linear", block_steps=9, ahead=1)
    other, _, _ = run(before, "linear", block_steps=9, ahead=1)

    (after,) = [one for one in act.seen if isinstance(one, list)]
    (at_three,) = [one for one in other.seen if isinstance(one, list)]
    assert after[0] == at_three[0]
