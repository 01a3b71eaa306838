"""The sequencer, model-checked against a reference that loops over a list."""

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from railbus.bus.sequencer import OutOfTurn, Role, Sequencer, Verdict
from railbus.schemas import Ack, Decision, Event, Hook, StopRequest

HOOKS = [Hook.TRAIN_BEGIN, Hook.TRAIN_STEP_END, Hook.EVAL_BEGIN, Hook.EVAL_STEP_END]


def make_event(seq: int, hook: Hook) -> Event:
    return Event(
        run_id="run", incarnation=0, seq=seq, hook=hook, time_ns=0, wall_ns=0, snapshot=b"\x80"
    )


class Reference:
    """The defined sequence as a loop over who is left; the machine compares after each rule."""

    def __init__(self, roles: list[Role]) -> None:
        self.roles, self.attached, self.seq = roles, list(roles), 0
        self.train = self.eval = False

    def open(self, hook: Hook) -> None:
        self.waiting = [role for role in self.attached if hook in role.hooks]
        self.acks, self.stops, self.patches, self.gone = [], [], [], []
        self.failed = False
        self.eval = self.eval and hook is not Hook.EVAL_BEGIN

    def hear(self, stop: StopRequest) -> None:
        self.eval, self.train = True, self.train or stop.scope == "train"


class SequencerMachine(RuleBasedStateMachine):
    """Drives both with the same acks, deadlines, detachings and stops from outside."""

    @initialize(
        roles=st.lists(
            st.tuples(
                st.frozensets(st.sampled_from(HOOKS)),
                st.sampled_from(["raise", "stop", "detach"]),
                st.sampled_from([None, 1.0, 5.0]),
            ),
            max_size=4,
        )
    )
    def begin(self, roles) -> None:
        made = [
            Role(name=f"r{k}", hooks=hooks, on_error=policy, deadline=deadline)
            for k, (hooks, policy, deadline) in enumerate(roles)
        ]
        self.sequencer, self.model = Sequencer("run", made), Reference(made)
        self.now, self.since = 0.0, 0.0
        self.hook: Any = None
        self.outside: list[str] = []

    @precondition(lambda self: self.hook is None)
    @rule(hook=st.sampled_from(HOOKS))
    def open(self, hook) -> None:
        self.sequencer.open(make_event(self.model.seq, hook), self.now)
        self.model.open(hook)
        self.hook, self.since = hook, self.now

    @precondition(lambda self: self.hook is not None and self.model.waiting)
    @rule(
        stop=st.sampled_from([None, "train", "eval"]),
        patch=st.one_of(st.none(), st.dictionaries(st.sampled_from("kl"), st.just(b"\x01"))),
        error=st.sampled_from([None, None, "ValueError: bad luck"]),
    )
    def ack(self, stop, patch, error) -> None:
        model, seq = self.model, self.model.seq
        role = model.waiting.pop(0)
        if error is not None:
            stop = patch = None
        request = stop and StopRequest(by=role.name, at=seq, reason="r", scope=stop)
        answer = Ack(
            run_id="run", seq=seq, hook=self.hook, by=role.name,
            stop=request or None, patch=patch, error=error,
        )  # fmt: skip
        k = model.roles.index(role)
        assert self.sequencer.ack(k, answer, self.now) is Verdict.ACCEPTED
        assert self.sequencer.ack(k, answer, self.now) is Verdict.REPEATED
        self.since = self.now
        if request:
            model.stops.append(request)
            model.hear(request)
        if patch:
            model.patches.append((role.name, patch))
        if error:
            self._fail(role, error)

    def _fail(self, role, error, *, outside=False) -> None:
        model = self.model
        if role.on_error == "raise":
            model.failed, model.waiting = True, []
        elif role.on_error == "stop" and outside:
            self.outside.append(role.name)
        elif role.on_error == "stop":
            reason = f"{role.name} failed: {error}"
            model.stops.append(
                StopRequest(
                    by=role.name, at=model.seq, reason=reason, scope="train", interrupts=True
                )
            )
        if role.on_error == "detach" and not outside:
            self._detach(role)

    def _detach(self, role) -> None:
        self.model.attached.remove(role)
        self.model.gone.append(role.name)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds) -> None:
        self.now += seconds
        role = self.model.waiting[0] if self.hook is not None and self.model.waiting else None
        late = role and role.deadline is not None and self.now - self.since >= role.deadline
        assert self.sequencer.expire(self.now) == (role if late else None)
        if late:
            self.since = self.now
            self.model.waiting.pop(0)
            self._detach(role)
            self._fail(role, "late", outside=True)

    @precondition(lambda self: self.hook is not None and not self.model.failed)
    @rule(k=st.integers(0, 3))
    def detach(self, k) -> None:
        roles = self.model.roles
        if k < len(roles) and roles[k] in self.model.attached:
            self.sequencer.detach(k)
            self._detach(roles[k])
            self.model.waiting = [role for role in self.model.waiting if role is not roles[k]]

    @rule()
    def ask_from_outside(self) -> None:
        self.sequencer.request_stop("operator", "enough")
        self.outside.append("operator")

    @precondition(lambda self: self.hook is not None and not self.model.waiting)
    @rule()
    def close(self) -> None:
        model = self.model
        if model.failed:
            with pytest.raises(OutOfTurn):
                self.sequencer.commit()
            self.sequencer.withdraw()
        else:
            decision = self.sequencer.commit()
            asked, self.outside = self.outside, []
            if asked:
                model.train = model.eval = True
            self._compare(decision, asked)
            if any(stop.scope == "train" for stop in decision.stops):
                model.train = model.eval = True
            model.seq += 1
        self.hook = None

    def _compare(self, decision: Decision, asked: list[str]) -> None:
        model = self.model
        assert [stop.by for stop in decision.stops] == [s.by for s in model.stops] + asked
        assert list(decision.stops[: len(model.stops)]) == model.stops
        assert list(decision.patches) == model.patches
        assert list(decision.detached) == model.gone

    @invariant()
    def it_is_the_turn_of_the_first_who_waits(self) -> None:
        if getattr(self, "hook", None) is not None:
            waiting = self.model.waiting
            turn = self.model.roles.index(waiting[0]) if waiting else None
            assert self.sequencer.turn == turn

    @invariant()
    def stops_are_never_lost(self) -> None:
        if hasattr(self, "model") and self.model.train:
            assert self.sequencer.stop_requested("train")


SequencerMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestSequencer = SequencerMachine.TestCase


def test_events_are_opened_one_by_one_and_in_order():
    sequencer = Sequencer("run", [Role(name="a", hooks=frozenset(Hook))])
    with pytest.raises(OutOfTurn, match="expected event #0"):
        sequencer.open(make_event(1, HOOKS[0]))
    sequencer.open(make_event(0, HOOKS[0]))

    with pytest.raises(OutOfTurn, match="is not committed"):
        sequencer.open(make_event(1, HOOKS[0]))
    with pytest.raises(OutOfTurn, match="before every participant"):
        sequencer.commit()


def test_a_patch_from_outside_follows_those_of_the_list_in_one_commit_only():
    sequencer = Sequencer("run", [Role(name="a", hooks=frozenset(HOOKS))])
    sequencer.open(make_event(0, Hook.TRAIN_BEGIN))
    sequencer.request_patch("ops", {"x": b"\x01"})
    sequencer.request_patch("ops", {"x": b"\x02"})
    own = Ack(run_id="run", seq=0, hook=Hook.TRAIN_BEGIN, by="a", patch={"x": b"\x00"})
    sequencer.ack(0, own)
    decision = sequencer.commit()
    adopted = sequencer.adopted
    sequencer.open(make_event(1, Hook.TRAIN_STEP_END))
    sequencer.ok()

    assert decision.patches == (
        ("a", {"x": b"\x00"}),
        ("ops", {"x": b"\x01"}),
        ("ops", {"x": b"\x02"}),
    )
    assert adopted == decision.patches[1:]
    assert sequencer.commit().patches == () == sequencer.adopted


def test_a_patch_from_outside_waits_when_its_event_is_withdrawn():
    sequencer = Sequencer("run", [])
    sequencer.open(make_event(0, Hook.TRAIN_BEGIN))
    sequencer.request_patch("ops", {"x": b"\x01"})
    sequencer.withdraw()
    sequencer.open(make_event(0, Hook.EXCEPTION))

    assert sequencer.commit().patches == (("ops", {"x": b"\x01"}),)
