"""A run's way onto the bus: publish, collect acks in the defined sequence, commit (C1-C4)."""

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from railbus.schemas.errors import DeadlineExceeded, told
from railbus.schemas.events import Ack, Committed, Decision, Event
from railbus.schemas.hooks import Hook
from railbus.schemas.params import Ledger

from .log import EventLog
from .sequencer import Role, Sequencer

logger = logging.getLogger(__name__)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event before it has its place in the run: what to change in `cb_params`, and when it was.

    `at` is a `time.perf_counter_ns()`, None means now; `error` goes with `on_exception`.
    """

    hook: Hook
    changes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    drop: tuple[str, ...] = ()
    at: int | None = None
    error: BaseException | None = None


class Answer(Enum):
    """What a participant can say without an ack of its own."""

    OK = "it has handled the event: no stop, no patch, no error"
    EXPIRED = "it has missed its deadline"


Drafts: TypeAlias = Generator[Draft, Decision, Any]
Walk: TypeAlias = Generator["Turn", Ack | Answer | None, None]


def last_words(
    error: BaseException,
    by: str | None,
    counters: Mapping[str, int] = MappingProxyType({}),
    at: int | None = None,
) -> Generator[Draft, Decision, Decision]:
    """The terminal event of a run that has failed; `by` is the participant that raised, if one did."""
    ending = {"status": "failed", "stop_reason": told(error)}
    if by is not None:
        ending["stop_by"] = by
    return (yield Draft(Hook.EXCEPTION, {**counters, **ending}, at=at, error=error))


class Participant(Protocol):
    """A member of a run's callback list: what the bus needs to know of it."""

    @property
    def role(self) -> Role:
        """Its name, hooks, policy and deadline."""

    @property
    def error(self) -> BaseException | None:
        """The exception behind its last ack, if that ack says error."""

    def worker(self, hook: Hook) -> "Worker":
        """Who runs it at `hook`."""

    def revoke(self) -> None:
        """It missed its deadline: whatever it still does has no effect on the run."""


class Turn:
    """A participant has to answer an event; a walk's turns are one object that moves on.

    Attributes:
        worker: who has to run it.
        error: what `on_exception` is about.
    """

    __slots__ = ("error", "event", "participant", "worker")
    participant: Participant
    worker: "Worker"
    event: Event
    error: BaseException | None


class Worker(Protocol):
    """Runs participants: a lane, the event loop, later a process or a remote slot."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Serve until closed, as a task of the run's group; `started()` once it can be driven."""

    def drive(self, walk: Walk, turn: Turn) -> Turn | None:
        """Answer `turn` and those after it as long as they are this worker's.

        Called from the training thread, which waits. Each answer is sent to `walk`, which gives
        the next turn. Returns the first turn of another worker, or None at the walk's end.
        """

    def close(self) -> None:
        """Let `run` return."""


def resume(walk: Walk, answer: Ack | Answer | None) -> Turn | None:
    """The walk's next turn after `answer` (None: its first turn), or None at its end."""
    try:
        return walk.send(answer)
    except StopIteration:
        return None


class Publisher:
    """A run's way onto the bus; used from the thread that trains.

    Args:
        log: where commits go.
        participants: the callback list.
        ledger: the run's `cb_params`.
        incarnation: counts the processes that carried the run on.
        before: seconds on the run's clock that earlier ones took.
    """

    def __init__(
        self,
        log: EventLog,
        participants: Sequence[Participant],
        ledger: Ledger,
        incarnation: int = 0,
        before: float = 0.0,
    ) -> None:
        self.ledger = ledger
        self.sequencer = Sequencer(log.run_id, [member.role for member in participants])
        self.failed_by: str | None = None
        self._log, self._run_id = log, log.run_id
        self._participants = tuple(participants)
        self._incarnation = incarnation
        self._last_ns = int(before * 1e9)
        self._begin_wall_ns = time.time_ns() - self._last_ns
        self._begin_ns = time.perf_counter_ns() - self._last_ns

    @property
    def now(self) -> float:
        """Seconds on the run's clock at the last event."""
        return self._last_ns / 1e9

    def publish(self, drafts: Drafts) -> None:
        """Publish and commit events one by one until `drafts` ends; each is sent its decision.

        The events travel as one burst: as long as neighbouring turns belong to one worker they
        cost one hop in all. What `drafts` does not yield, nobody has seen.

        Raises:
            BaseException: what a participant with policy `raise` raised; its event is withdrawn.
            DeadlineExceeded: a participant with policy `raise` missed its deadline.
        """
        walk = self._walk(drafts)
        try:
            turn = resume(walk, None)
            while turn is not None:
                turn = turn.worker.drive(walk, turn)
        finally:
            walk.close()
            if self.sequencer.event is not None:
                self.sequencer.withdraw()
                self.ledger.withdraw()

    def _walk(self, drafts: Drafts) -> Walk:
        sequencer = self.sequencer
        draft = next(drafts, None)
        turn = Turn()
        while draft is not None:
            turn.event = event = self._event(draft)
            turn.error = draft.error
            step, epoch = self._place(draft)
            k = sequencer.open(event, time.monotonic(), step, epoch)
            while k is not None:
                turn.participant = participant = self._participants[k]
                turn.worker = participant.worker(event.hook)
                answer = yield turn
                if answer is Answer.OK:
                    sequencer.ok(time.monotonic())
                elif isinstance(answer, Ack):
                    sequencer.ack(k, answer, time.monotonic())
                else:
                    self._expire(k)
                k = sequencer.turn
            if sequencer.failure is not None:
                raise self._failure(event)
            decision = sequencer.commit()
            if decision.patches:
                for _, patch in sequencer.adopted:
                    self.ledger.adopt(patch)
                self.ledger.commit()
            self._log.append(Committed(event, decision, sequencer.spoken, step, epoch))
            try:
                draft = drafts.send(decision)
            except StopIteration:
                return

    def _event(self, draft: Draft) -> Event:
        self.ledger.publish(draft.changes, draft.drop)
        at = time.perf_counter_ns() if draft.at is None else draft.at
        self._last_ns = now = max(at - self._begin_ns, self._last_ns)
        return Event(
            run_id=self._run_id,
            incarnation=self._incarnation,
            seq=self.sequencer.seq,
            hook=draft.hook,
            time_ns=now,
            wall_ns=self._begin_wall_ns + now,
            snapshot=self.ledger.snapshot(),
        )

    def _place(self, draft: Draft) -> tuple[int, int]:
        """Step and epoch of the event of `draft`, which is the present one."""
        counters = self.ledger.params
        return counters.get("cur_step_num", 0), counters.get("cur_epoch_num", 0)

    def _expire(self, k: int) -> None:
        participant = self._participants[k]
        participant.revoke()
        self.ledger.renew()
        self.sequencer.expire(time.monotonic())
        logger.error(
            "%s did not ack %s within %s s and is left behind, on_error=%r",
            participant.role.name,
            self.sequencer.event,
            participant.role.deadline,
            participant.role.on_error,
        )

    def _failure(self, event: Event) -> BaseException:
        assert self.sequencer.failure is not None
        role, text = self.sequencer.failure
        self.failed_by = role.name
        error = next(one.error for one in self._participants if one.role is role)
        if error is None:
            error = DeadlineExceeded(
                f"{text}; give it a longer deadline, or on_error='detach' to go on without it",
                run_id=event.run_id,
                event=str(event),
                subscriber=role.name,
            )
        else:
            error.add_note(f"railbus: {role.name} raised it in {event} of run {event.run_id}")
        return error
