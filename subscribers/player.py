"""Recorded events on their way through the real bus: `Publisher` and `Sequencer`, fed from a stream."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from railbus.bus.about import About
from railbus.bus.log import EventLog
from railbus.bus.publisher import Draft, Drafts, Participant, Publisher, last_words
from railbus.bus.sequencer import Sequencer
from railbus.schemas.errors import RecordedFailure
from railbus.schemas.events import Committed, Decision, Event, StopRequest
from railbus.schemas.hooks import Hook, Mode
from railbus.schemas.lifecycle import UNITS

from .absent import Absent
from .context import MODES
from .recorded import RecordedLedger
from .roster import Roster

logger = logging.getLogger(__name__)


class Past(Draft, frozen=True, kw_only=True):
    """A draft that has happened."""

    entry: Committed


class Log(EventLog):
    """Keeps all that is committed.

    Args:
        only: hooks of which observers get events.
        watch: gets each entry, too.
    """

    def __init__(
        self, run_id: str, only: Collection[Hook], watch: Callable[[Committed], object] | None
    ) -> None:
        super().__init__(run_id)
        self.kept: list[Committed] = []
        self._only, self._watch = only, watch

    def append(self, entry: Committed) -> None:
        """`entry` was committed once more."""
        self.kept.append(entry)
        if self._observers and entry.event.hook in self._only:
            super().append(entry)
        if self._watch is not None:
            self._watch(entry)


class _Asking(Sequencer):
    """Asks absent participants at the events at which they said something.

    Attributes:
        speaking: which of them do so at the coming event, in order.
    """

    speaking: Sequence[int] = ()

    def wanting(self, hook: Hook, step: int = 0, epoch: int = 0) -> list[int]:
        """Those who get the event, in order."""
        found = super().wanting(hook, step, epoch)
        return sorted({*found, *self.speaking}) if self.speaking else found


class Player(Publisher):
    """Publishes a recorded run again.

    Args:
        members: who takes part, recorded and absent ones included, in order.

    Attributes:
        diverged: where and why a live run would not have gone on as the record does.
        failure: what the recorded run failed with, once that is shown.
        error: what a callback with the policy `raise` has raised.
        names: of the members.
    """

    ledger: RecordedLedger

    def __init__(
        self, log: Log, members: Sequence[Participant], ledger: RecordedLedger, about: About
    ) -> None:
        super().__init__(log, members, ledger, about.incarnation)
        self.sequencer: _Asking = _Asking(about.run_id, [member.role for member in members])
        self.diverged: str | None = None
        self.failure: RecordedFailure | None = None
        self._about = about
        self._recorded = {role.name: role for role in about.roles}
        self._absent = {
            member.role.name: (k, member)
            for k, member in enumerate(members)
            if isinstance(member, Absent)
        }
        self._stops: dict[Mode, StopRequest | None] = dict.fromkeys(MODES)
        self._recorded_stops: dict[Mode, StopRequest | None] = dict.fromkeys(MODES)
        self.names = [member.role.name for member in members]
        self.error: BaseException | None = None
        self._over = False
        self._trained: Event | None = None
        self._faithful = True  # the callbacks have written so far what the record says

    def play(self, bursts: Iterable[Iterable[Committed]], roster: Roster) -> None:
        """Publish recorded events, as far as a live run would have had them.

        Raises:
            BaseException: whatever is not the error of a callback.
        """
        try:
            for burst in bursts:
                self.publish(self._drafts(burst, roster))
                if self._over:
                    return
        except Exception as error:
            if self.failed_by is None:
                raise
            self.error = error
            self._fail(error, roster)

    def _drafts(self, entries: Iterable[Committed], roster: Roster) -> Drafts:
        for entry in entries:
            hook = entry.event.hook
            if hook in UNITS and self._is_over(entry.event, UNITS[hook]):
                self._over = True
                return
            error = None
            if hook is Hook.EXCEPTION:
                error = self.failure = _failure_of(entry.event)
                roster.fail(error)
            self._compare(entry, (yield Past(hook, error=error, entry=entry)))

    def _fail(self, error: Exception, roster: Roster) -> None:
        """A callback has raised what the record does not have: tell the others, as a run does."""
        self._say(
            f"{self.failed_by} raised {type(error).__name__} at #{self.sequencer.seq}: {error}"
        )
        self.sequencer.speaking = ()  # this event is not in the record
        roster.fail(error)
        newest = self._begin_ns + self._last_ns
        try:
            self.publish(last_words(error, self.failed_by, at=newest))
        except Exception as another:
            logger.error("on_exception of the replay failed", exc_info=another)

    def _event(self, draft: Draft) -> Event:
        if not isinstance(draft, Past):
            return super()._event(draft)
        entry, event = draft.entry, draft.entry.event
        self.sequencer.seq = event.seq
        self._last_ns, self._begin_wall_ns = event.time_ns, event.wall_ns - event.time_ns
        decision = entry.decision
        if entry.acks or decision.stops or decision.detached:
            self._recall(entry)
        elif self.sequencer.speaking:
            self.sequencer.speaking = ()
        if event.hook is Hook.TRAIN_STEP_END:
            self._trained = event
        wanted = self.sequencer.wanting(event.hook, entry.step, entry.epoch)
        if wanted or not (self.ledger.began and self._faithful):
            self.ledger.show(event, self._trained)
        if self._faithful:
            return event
        return msgspec.structs.replace(event, snapshot=self.ledger.snapshot())

    def _place(self, draft: Draft) -> tuple[int, int]:
        if isinstance(draft, Past):
            return draft.entry.step, draft.entry.epoch
        return super()._place(draft)

    def _recall(self, entry: Committed) -> None:
        """Make ready what absent participants, and others outside the list, did at the event."""
        said = {ack.by: ack for ack in entry.acks}
        self.sequencer.speaking = [k for name, (k, _) in self._absent.items() if name in said]
        for name, (k, absent) in self._absent.items():
            absent.ack = said.get(name)
            if absent.ack is None and name in entry.decision.detached:
                self.sequencer.detach(k)
        for stop in entry.decision.stops:
            late = stop.by in self._absent and stop.by not in said  # it missed its deadline
            if late or stop.by not in self._recorded:
                self.sequencer.request_stop(stop.by, stop.reason)

    def _compare(self, entry: Committed, decision: Decision) -> None:
        """The event is committed once more: note what the record says beside what has happened."""
        recorded, event = entry.decision, entry.event
        if recorded.patches or decision.patches:
            self._faithful &= recorded.patches == decision.patches
            for _, patch in recorded.patches:
                self.ledger.note(patch)
        if event.hook is Hook.EVAL_BEGIN:
            self._stops["eval"] = self._recorded_stops["eval"] = None
        if recorded.stops or decision.stops:
            self._hear(event, recorded, decision)
        if self._about.plan.ends_with(event.hook):
            self._is_over(event, self._about.plan.mode)

    def _hear(self, event: Event, recorded: Decision, decision: Decision) -> None:
        for mode in MODES:
            stop = self._recorded_stops[mode] = self._recorded_stops[mode] or recorded.stop(mode)
            self._stops[mode] = self._stops[mode] or decision.stop(mode)
            if stop is not None and self._stops[mode] is None:
                self._say(
                    f"{stop.by} stopped the recorded run at {event} ({stop.reason}) and did not in "
                    f"the replay; what follows is the recorded ending"
                )

    def _is_over(self, event: Event, mode: Mode) -> bool:
        """Whether a stop that is not in the record has ended a live run before `event` (C3)."""
        stop = self._stops[mode]
        if stop is None or self._recorded_stops[mode] is not None:
            return False
        ends = self._about.plan.ends_with(event.hook)
        rest = f"would have ended otherwise than {event}" if ends else f"would have no {event}"
        self._say(
            f"{stop.by} asked at #{stop.at} to stop ({stop.reason}), which the record does not "
            f"have; a live run {rest}"
        )
        return True

    def _say(self, what: str) -> None:
        self.diverged = self.diverged or what


def _failure_of(event: Event) -> RecordedFailure:
    reason = event.cb_params.get("stop_reason", "the recorded run failed")
    return RecordedFailure(str(reason))
