"""`Remote`: a participant that runs in another process, in its place of the callback list."""

import re
from collections.abc import Collection

import numpy as np
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from railbus.bus.observer import hooks_named
from railbus.bus.publisher import Answer as Plain, Turn, Walk, resume
from railbus.bus.sequencer import POLICIES, Policy
from railbus.bus.slot import Slot
from railbus.schemas.codec import unpack
from railbus.schemas.codes import Code
from railbus.schemas.errors import ArgumentError, RemoteFailure, told
from railbus.schemas.events import Ack
from railbus.schemas.frames import NAME, Answer, Asked
from railbus.schemas.hooks import STEPS, Hook
from railbus.schemas.pieces import pack_arrays

from .callback import Callback
from .checks import count, seconds
from .context import MODES, RunContext
from .filters import every as every_nth, inner_of
from .participant import CallbackParticipant
from .weights import pack_weights


class Remote(Callback):
    """Holds the place of a callback that another process runs with `run_callback`.

    The run waits for its ack to each event that it wants, as for any participant: its stops and
    changes act at that event, in the order of the list (C1-C4). Its name in the run is the slot.
    The run must be served, to tokens with the scope `control`. What the callback there keeps for
    itself is not in checkpoints of this run.

    Args:
        slot: lower-case letters, digits, `-` and `_`; each slot stands in a list once.
        deadline: seconds per event, for a peer that is slow, has gone and comes back, or has not
            come yet (C7).
        on_lost: what a missed deadline does, or an exception in its hook: `"detach"`, `"stop"` or
            `"raise"`, as `Callback.on_error`.
        hooks: which ones it gets, by `Hook` or by name; None means all. The peer acks those that
            its callback does not have without being asked; before one has come, all are waited for.
        every: of the step events only those whose `cur_step_num` is a multiple.

    Raises:
        ArgumentError, ArgumentTypeError: for what is none of that.
    """

    def __init__(
        self,
        slot: str,
        *,
        deadline: float = 30.0,
        on_lost: Policy = "detach",
        hooks: Collection[Hook | str] | None = None,
        every: int = 1,
    ) -> None:
        if not isinstance(slot, str) or not re.fullmatch(NAME, slot):
            raise ArgumentError(
                f"slot must be lower-case letters, digits, '-' and '_', at most 64 of them, got "
                f"{slot!r}"
            )
        if on_lost not in POLICIES:
            raise ArgumentError(f"on_lost must be one of {POLICIES}, got {on_lost!r}")
        self.slot, self.deadline, self.on_error = slot, seconds("deadline", deadline), on_lost
        self._every = count("every", every, 1)
        wanted = hooks_named(hooks)
        if every > 1 and not wanted & STEPS:
            raise ArgumentError("every chooses among step events, and hooks has none of them")
        self._seat, self._traced = Slot(slot), tuple[str, ...]()
        for hook in wanted:
            setattr(self, hook.value, self._ask)

    def __enter__(self) -> Callback:
        self._seat, self._traced = Slot(self.slot), ()
        return self if self._every == 1 else every_nth(self._every, self)

    def _ask(self, run_context: RunContext, error: BaseException | None = None) -> None:
        """Let the peer handle the event, and do here what it asks for."""
        assert self.deadline is not None
        asked = Asked(
            event=run_context.seen(),
            traced=self._numbers(run_context),
            stopping=tuple(mode for mode in MODES if run_context.get_stop_requested(mode)),
            error=None if error is None else told(error),
            seconds=self.deadline,
        )
        cb_params = run_context.original_args()
        answer = self._seat.ask(
            asked, lambda: pack_arrays(pack_weights(cb_params.train_network.params))
        )
        if answer is None:
            raise _Expired
        self._apply(answer, run_context)

    def _numbers(self, run_context: RunContext) -> tuple[str, ...]:
        """The hyperparameters that may be assigned; they are the same throughout a run."""
        if not self._traced:
            names = run_context.hyperparams()
            self._traced = tuple(name for name in names if run_context.writable(name))
        return self._traced

    def _apply(self, answer: Answer, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        if answer.stop is not None:
            run_context.request_stop(answer.stop, answer.scope, interrupts=answer.interrupts)
        if answer.error is not None:
            raise RemoteFailure(answer.error)
        for key, packed in (answer.patch or {}).items():
            if packed is None:
                del cb_params[key]
                continue
            value = unpack(packed)
            if key in self._traced and isinstance(value, np.generic):
                value = value.item()  # numpy has no bfloat16, float holds each of its numbers
            cb_params[key] = value


class RemoteParticipant(CallbackParticipant):
    """Runs a `Remote` in its place of the list."""

    @property
    def slot(self) -> Slot:
        """Where its peer sits."""
        return remote_of(self.callback)._seat  # type: ignore[union-attr]  # it is one

    def ack(self, turn: Turn, error: BaseException | None) -> Ack | Plain:
        """The answer; a peer that has failed is not asked again where its policy is `detach`."""
        ack = super().ack(turn, error)
        if error is not None and self.role.on_error == "detach":
            self.slot.dismiss(Code.DETACHED, told(error)[:1000])
        return ack

    def revoke(self) -> None:
        """It missed its deadline: whatever the peer still does has no effect on the run."""
        super().revoke()
        self.revoked = False  # no thread is stuck in it
        self.slot.dismiss(Code.DETACHED, f"no ack within {self.role.deadline} s")


class RemoteWorker:
    """Runs a list's `Remote`s: the thread that trains waits for their peers itself."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """There is nothing to serve."""
        task_status.started()

    def close(self) -> None:
        """Nothing is left to end."""

    def drive(self, walk: Walk, turn: Turn) -> Turn | None:
        """Answer `turn` and those after it that are for peers; returns the first other one."""
        following: Turn | None = turn
        while following is not None and following.worker is self:
            participant = following.participant
            assert isinstance(participant, RemoteParticipant)
            error = participant.call(following)
            expired = isinstance(error, _Expired)
            ack = Plain.EXPIRED if expired else participant.ack(following, error)
            following = resume(walk, ack)
        return following


class _Expired(Exception):
    """The peer has not answered within the deadline."""


def remote_of(callback: Callback) -> Remote | None:
    """The `Remote` that `callback` is, whatever filters are around it."""
    inner = inner_of(callback)
    return inner if isinstance(inner, Remote) else None
