"""Recorded participants that are not replayed: they act as they did, in their places of the list."""

from collections.abc import Iterator, Sequence

import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from railbus.bus.publisher import Participant, Turn, Walk, Worker, resume
from railbus.bus.sequencer import Role
from railbus.schemas.events import Ack
from railbus.schemas.hooks import Hook

from .participant import CallbackParticipant
from .recorded import RecordedLedger


class Recall:
    """Answers for the recorded participants that are not replayed."""

    def __init__(self, ledger: RecordedLedger) -> None:
        self._ledger = ledger

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Nothing has to run."""
        task_status.started()

    def close(self) -> None:
        """Nothing has to end."""

    def drive(self, walk: Walk, turn: Turn) -> Turn | None:
        """Give the recorded acks, and write what they wrote."""
        following: Turn | None = turn
        while following is not None and isinstance(following.participant, Absent):
            ack = following.participant.ack
            assert ack is not None
            self._ledger.apply(ack.patch or {})
            following = resume(walk, ack)
        return following


class Absent:
    """A recorded participant that is not replayed: it answers what it answered.

    Attributes:
        ack: to the present event; None where it said no more than ok, and is not asked.
    """

    error: BaseException | None = None

    def __init__(self, role: Role, recall: Recall) -> None:
        self.role = msgspec.structs.replace(role, hooks=frozenset(), deadline=None)
        self.ack: Ack | None = None
        self._recall = recall

    def worker(self, hook: Hook) -> Worker:
        """Who answers for it."""
        return self._recall

    def revoke(self) -> None:
        """It has no deadline."""


def members_of(
    present: Sequence[CallbackParticipant], recorded: Sequence[Role], ledger: RecordedLedger
) -> list[Participant]:
    """The participants of a replay, in order: the present ones in theirs, the others in between.

    A recorded one that is absent stands before the first present one that it stood before; a
    present one that is not in the record stands right before the next that is, or at the end.
    """
    places = {role.name: place for place, role in enumerate(recorded)}
    names = {one.role.name for one in present}
    recall = Recall(ledger)
    absent = iter([(places[r.name], Absent(r, recall)) for r in recorded if r.name not in names])
    members: list[Participant] = []
    waiting = next(absent, None)
    for place, one in _placed(present, places):
        while waiting is not None and waiting[0] < place:
            members.append(waiting[1])
            waiting = next(absent, None)
        members.append(one)
    if waiting is not None:
        members += [waiting[1], *(one for _, one in absent)]
    return members


def _placed(
    present: Sequence[CallbackParticipant], places: dict[str, int]
) -> Iterator[tuple[int, CallbackParticipant]]:
    found, place = [], len(places)
    for one in reversed(present):
        place = places.get(one.role.name, place)
        found.append((place, one))
    return reversed(found)
