"""C6: the first ack per event and participant wins; repeats and late ones have no effect."""

import msgspec
import pytest

from railbus.bus import Role, Sequencer, Verdict
from railbus.schemas import Ack, Event, Hook, StopRequest

HOOK = Hook.TRAIN_STEP_END


def event(seq: int, hook: Hook = HOOK) -> Event:
    return Event(
        run_id="run", incarnation=0, seq=seq, hook=hook, time_ns=0, wall_ns=0, snapshot=b"\x80"
    )


def ack(seq: int, by: str = "a", **changes) -> Ack:
    return Ack(run_id="run", seq=seq, hook=HOOK, by=by, **changes)


def stop(by: str, seq: int) -> StopRequest:
    return StopRequest(by=by, at=seq, reason="r", scope="train")


@pytest.fixture
def sequencer() -> Sequencer:
    return Sequencer("run", [Role(name=name, hooks=frozenset(Hook)) for name in "ab"])


def test_a_repeat_does_nothing_and_a_conflict_is_recorded(sequencer):
    sequencer.open(event(0))
    first = ack(0, patch={"k": b"\x01"})
    assert sequencer.ack(0, first) is Verdict.ACCEPTED

    conflict = ack(0, stop=stop("a", 0))
    verdicts = [sequencer.ack(0, first), sequencer.ack(0, conflict)]
    sequencer.ack(1, ack(0, "b"))
    decision = sequencer.commit()

    assert verdicts == [Verdict.REPEATED, Verdict.CONFLICT]
    assert decision.stops == ()
    assert list(sequencer.refused) == [(Verdict.CONFLICT, conflict)]


def test_acks_to_committed_events_have_no_effect(sequencer):
    sequencer.open(event(0))
    sequencer.ack(0, ack(0))
    sequencer.ack(1, ack(0, "b"))
    sequencer.commit()
    sequencer.open(event(1))

    assert sequencer.ack(0, ack(0)) is Verdict.REPEATED
    assert sequencer.ack(0, ack(0, stop=stop("a", 0))) is Verdict.CONFLICT
    assert not sequencer.stop_requested("train")
    assert sequencer.turn == 0


@pytest.mark.parametrize(
    ("k", "wrong"),
    [
        (1, ack(0, "b")),
        (0, ack(1)),
        (0, ack(2**62)),
        (0, ack(0, "b")),
        (7, ack(0)),
        (0, msgspec.structs.replace(ack(0), run_id="another")),
        (0, msgspec.structs.replace(ack(0), hook=Hook.TRAIN_END)),
    ],
)
def test_acks_out_of_turn_are_foreign(sequencer, k, wrong):
    sequencer.open(event(0))

    assert sequencer.ack(k, wrong) is Verdict.FOREIGN
    assert sequencer.turn == 0


def test_an_ack_after_the_deadline_is_late():
    roles = [Role(name="a", hooks=frozenset(Hook), deadline=1.0, on_error="detach")]
    sequencer = Sequencer("run", roles)
    sequencer.open(event(0), now=10.0)
    assert sequencer.expire(10.9) is None
    assert sequencer.expire(11.0) == roles[0]

    assert sequencer.ack(0, ack(0, stop=stop("a", 0))) is Verdict.LATE
    decision = sequencer.commit()

    assert (decision.stops, decision.detached) == ((), ("a",))


def test_an_ack_to_a_withdrawn_event_does_not_count_for_the_one_that_takes_its_seq(sequencer):
    sequencer.open(event(0))
    sequencer.ack(0, ack(0, error="ValueError: bad luck"))
    sequencer.withdraw()
    sequencer.open(event(0, Hook.EXCEPTION))

    assert sequencer.ack(0, ack(0)) is Verdict.CONFLICT
    assert sequencer.turn == 0
