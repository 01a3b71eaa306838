"""Who acks which event when, and what it amounts to: a pure state machine (C1-C4, C6, C7).

No I/O, no await, no clock: time comes in as a value, in seconds. A shell around it calls `open`,
then `ack` (or `expire`) for whoever's `turn` it is until nobody is left, then `commit`.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from railbus.schemas.errors import RailbusError
from railbus.schemas.events import Ack, Decision, Event, StopRequest
from railbus.schemas.hooks import Hook, Mode

from .rule import Rule

Patch: TypeAlias = Mapping[str, bytes | None]
Policy = Literal["raise", "stop", "detach"]
POLICIES: tuple[Policy, ...] = ("raise", "stop", "detach")
REMEMBERED = 64  # events whose acks are kept to tell a repeat from a conflict
SUBSETS = 256  # combinations of rules whose participants are kept
REFUSED = 1024  # acks without effect that are kept for inspection


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A participant as the sequencer knows it.

    `hooks` are those it wants; `on_error` is the policy for an error or a missed deadline;
    `deadline` is in seconds per event, None waits for ever; of its hooks it gets the events that
    all `rules` let pass. Names are unique within a run.
    """

    name: str
    hooks: frozenset[Hook]
    on_error: Policy = "raise"
    deadline: float | None = None
    rules: tuple[Rule, ...] = ()


class Verdict(Enum):
    """What became of an ack."""

    ACCEPTED = "it was the participant's turn, the ack counts"
    REPEATED = "the same ack came before, nothing happens"
    CONFLICT = "another ack of this participant to this event came before and stays"
    LATE = "the event went on without this participant"
    FOREIGN = "the participant was not asked this"


class OutOfTurn(RailbusError, RuntimeError):
    """Raised when a shell calls the sequencer out of order: a bug of the shell."""


def judge(
    event: Event,
    acks: Iterable[tuple[Role, Ack]],
    asked_outside: Iterable[tuple[str, str]] = (),
    detached: Sequence[str] = (),
    patched_outside: Iterable[tuple[str, Patch]] = (),
) -> Decision:
    """What the acks of one event amount to, in the order of the callback list.

    acks and policy               | decision
    ------------------------------+-----------------------------------------------
    all ok                        | go on
    any stop                      | stop; every request is kept, the first is named
    patches                       | all of them; a later one of the same key wins
    error, policy `stop`          | a stop in the name of the participant
    error, policy `detach`        | go on without the participant
    a stop asked from outside     | a stop, after those of the list
    a patch from outside          | a patch, after those of the list

    A stop for an error and one from outside interrupt the run: resumed, it trains on. An error under policy `raise` never gets here: the event is withdrawn instead.
    """
    stops: list[StopRequest] = []
    patches: list[tuple[str, Patch]] = []
    for role, ack in acks:
        if ack.stop is not None:
            stops.append(ack.stop)
        if ack.patch:
            patches.append((role.name, ack.patch))
        if ack.error is not None and role.on_error == "stop":
            stops.append(_stop(role.name, event, f"{role.name} failed: {ack.error}"))
    stops += [_stop(by, event, reason) for by, reason in asked_outside]
    return Decision(
        run_id=event.run_id,
        seq=event.seq,
        hook=event.hook,
        stops=tuple(stops),
        patches=(*patches, *patched_outside),
        detached=tuple(detached),
    )


def _stop(by: str, event: Event, reason: str) -> StopRequest:
    return StopRequest(by=by, at=event.seq, reason=reason, scope="train", interrupts=True)


class Sequencer:
    """One run's events and acks, in the defined sequence.

    Args:
        run_id: acks to another run are foreign.
        roles: the participants, in the order of the callback list.

    Attributes:
        adopted: the patches of the newest decision that came from outside the list, by whom.
    """

    def __init__(self, run_id: str, roles: Sequence[Role]) -> None:
        self.run_id = run_id
        self.roles = tuple(roles)
        self.seq = 0
        self.event: Event | None = None
        self.failure: tuple[Role, str] | None = None
        self.refused: deque[tuple[Verdict, Ack]] = deque(maxlen=REFUSED)
        self._attached = set(range(len(self.roles)))
        self._wanting: dict[Hook, tuple[list[int], list[Rule]]] = {}
        self._subsets: dict[tuple[Hook, tuple[bool, ...]], list[int]] = {}
        self._queue: list[int] = []
        self._since = 0.0
        self._acks: dict[int, Ack | None] = {}  # None is a plain ok
        self._spoken = False  # whether one of them is more than that
        self._past: deque[tuple[int, Hook, dict[int, Ack | None]]] = deque(maxlen=REMEMBERED)
        self._detached: list[str] = []
        self.adopted: tuple[tuple[str, Patch], ...] = ()
        self._outside: deque[tuple[str, str]] = deque()
        self._patches: deque[tuple[str, Patch]] = deque()
        self._asked: dict[Mode, bool] = {"train": False, "eval": False}

    def open(self, event: Event, now: float = 0.0, step: int = 0, epoch: int = 0) -> int | None:
        """`event` begins; the first participant that wants it has the turn, and is returned.

        `step` and `epoch` are its `cur_step_num` and `cur_epoch_num`, for the rules.
        """
        if self.event is not None:
            raise OutOfTurn(f"{event} opened while {self.event} is not committed")
        if event.seq != self.seq:
            raise OutOfTurn(f"expected event #{self.seq}, got {event}")
        if event.hook is Hook.EVAL_BEGIN:
            self._asked["eval"] = False
        self.event, self._since = event, now
        self._acks, self._spoken = {}, False
        self._queue = self.wanting(event.hook, step, epoch)[::-1]
        return self._queue[-1] if self._queue else None

    def wanting(self, hook: Hook, step: int = 0, epoch: int = 0) -> list[int]:
        """The attached participants that want `hook` there, in order."""
        found = self._wanting.get(hook)
        if found is None:
            roles = enumerate(self.roles)
            able = [k for k, role in roles if k in self._attached and hook in role.hooks]
            asked = (rule for k in able for rule in self.roles[k].rules if hook in rule.hooks)
            found = self._wanting[hook] = able, list(dict.fromkeys(asked))
        able, rules = found
        if not rules:
            return able
        open_now = tuple([rule.lets(step, epoch) for rule in rules])
        chosen = self._subsets.get((hook, open_now))
        if chosen is None:
            shut = {rule for rule, is_open in zip(rules, open_now, strict=True) if not is_open}
            chosen = [k for k in able if shut.isdisjoint(self.roles[k].rules)]
            if len(self._subsets) >= SUBSETS:
                self._subsets.clear()
            self._subsets[hook, open_now] = chosen
        return chosen

    @property
    def turn(self) -> int | None:
        """Whose ack is awaited; None when the event can be committed, has failed or is not open."""
        return self._queue[-1] if self._queue else None

    def ack(self, k: int, ack: Ack, now: float = 0.0) -> Verdict:
        """Participant `k` answers; only the first answer to its turn counts (C6)."""
        event = self.event
        if (
            event is not None
            and self._queue
            and self._queue[-1] == k
            and ack.seq == event.seq
            and ack.hook is event.hook
            and ack.by == self.roles[k].name
            and ack.run_id == self.run_id
        ):
            self._accept(k, ack, now)
            return Verdict.ACCEPTED
        verdict = self._refuse(k, ack)
        if verdict is not Verdict.REPEATED:
            self.refused.append((verdict, ack))
        return verdict

    def ok(self, now: float = 0.0) -> None:
        """Whoever has the turn acks with a plain ok: no stop, no patch, no error."""
        self._acks[self._queue.pop()] = None
        self._since = now

    def expire(self, now: float) -> Role | None:
        """The participant whose deadline is over at `now`, if any; its policy acts (C7).

        It is detached whatever the policy: it is still busy with the event it did not ack.
        """
        if self.event is None or self.turn is None:
            return None
        k, role = self.turn, self.roles[self.turn]
        if role.deadline is None or now - self._since < role.deadline:
            return None
        self._queue.pop()
        self._since = now
        self.detach(k)
        error = f"no ack within {role.deadline} s"
        if role.on_error == "stop":
            self._outside.append((role.name, f"{role.name} failed: {error}"))
        elif role.on_error == "raise" and self.event.hook is not Hook.EXCEPTION:
            self._fail(role, error)
        return role

    def detach(self, k: int) -> None:
        """Participant `k` gets nothing from here on, the open event included."""
        if k not in self._attached:
            return
        self._attached.discard(k)
        self._wanting, self._subsets = {}, {}
        self._detached.append(self.roles[k].name)
        if k in self._queue:
            self._queue.remove(k)

    def request_stop(self, by: str, reason: str) -> None:
        """Someone outside the list asks to stop; it becomes part of the next commit (C3)."""
        self._outside.append((by, reason))

    def hear(self, request: StopRequest) -> None:
        """A stop was asked: in an ack, from outside, or before the run was resumed."""
        self._asked["eval"] = True
        if request.scope == "train":
            self._asked["train"] = True

    def request_patch(self, by: str, patch: Patch) -> None:
        """Someone outside the list changes a value; it becomes part of the next commit."""
        self._patches.append((by, patch))

    def stop_requested(self, mode: Mode) -> bool:
        """Whether a stop of `mode` was asked so far, acks to the open event included."""
        return self._asked[mode]

    @property
    def spoken(self) -> tuple[Ack, ...]:
        """Acks to the newest event that said more than ok, in the order of the list."""
        if not self._spoken:
            return ()
        return tuple(ack for ack in self._acks.values() if ack is not None)

    def commit(self) -> Decision:
        """The event's last participant has acked: what the acks amount to."""
        event = self.event
        if event is None or self._queue or self.failure is not None:
            raise OutOfTurn("commit before every participant has acked")
        decision = self._judged(event)
        for request in decision.stops:
            self.hear(request)
        self._close(event)
        self.seq += 1
        return decision

    def _judged(self, event: Event) -> Decision:
        self.adopted = ()
        if not (self._spoken or self._outside or self._patches or self._detached):
            return Decision(run_id=event.run_id, seq=event.seq, hook=event.hook)
        outside = [self._outside.popleft() for _ in range(len(self._outside))]
        self.adopted = tuple(self._patches.popleft() for _ in range(len(self._patches)))
        acks = [(self.roles[k], ack) for k, ack in self._acks.items() if ack is not None]
        return judge(event, acks, outside, self._detached, self.adopted)

    def withdraw(self) -> None:
        """The open event fails and is not committed; the next one takes its `seq`."""
        if self.event is None:
            raise OutOfTurn("withdraw without an open event")
        self._queue, self.failure = [], None
        self._close(self.event)

    def _accept(self, k: int, ack: Ack, now: float) -> None:
        self._queue.pop()
        self._acks[k] = ack
        self._spoken = True
        self._since = now
        if ack.stop is not None:
            self.hear(ack.stop)
        if ack.error is None or ack.hook is Hook.EXCEPTION:
            return
        if self.roles[k].on_error == "detach":
            self.detach(k)
        elif self.roles[k].on_error == "raise":
            self._fail(self.roles[k], ack.error)

    def _fail(self, role: Role, error: str) -> None:
        self.failure = (role, error)
        self._queue = []

    def _refuse(self, k: int, ack: Ack) -> Verdict:
        if not 0 <= k < len(self.roles) or ack.by != self.roles[k].name:
            return Verdict.FOREIGN
        if ack.run_id != self.run_id or ack.seq > self.seq:
            return Verdict.FOREIGN
        asked = (ack.seq, ack.hook)
        if self.event is not None and asked == (self.event.seq, self.event.hook):
            acks, gone = self._acks, k not in self._attached
        else:
            found = (past for seq, hook, past in self._past if (seq, hook) == asked)
            acks, gone = next(found, {}), ack.seq < self.seq
        if k in acks:
            before = acks[k] or Ack(run_id=ack.run_id, seq=ack.seq, hook=ack.hook, by=ack.by)
            return Verdict.REPEATED if before == ack else Verdict.CONFLICT
        return Verdict.LATE if gone else Verdict.FOREIGN

    def _close(self, event: Event) -> None:
        self._past.append((event.seq, event.hook, self._acks))
        self._detached = []
        self.event = None
