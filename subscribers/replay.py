"""`replay`: recorded events fed to callbacks, through the bus that a run uses (C10)."""

import io
import logging
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import redirect_stdout
from typing import Any, Literal, TextIO

import msgspec
from anyio.from_thread import start_blocking_portal

from railbus.bus.about import About
from railbus.bus.bus import serving
from railbus.bus.stream import Stream
from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.events import Committed
from railbus.schemas.hooks import Hook, Mode

from .absent import members_of
from .callback import Callback, callback_list, refuse_legacy
from .checks import positive
from .feed import Until, contiguous, hook_of, last_of, paced, up_to
from .follower import Follower
from .player import Log, Player
from .recorded import Load, RecordedLedger
from .replayed import Replayed
from .roster import Roster

logger = logging.getLogger(__name__)


def replay(
    stream: Stream,
    callbacks: Any,
    *,
    clock: Literal["recorded"] | float = "recorded",
    until: Until = None,
    only: Collection[Hook | str] | None = None,
    echo: bool = False,
    gaps: Literal["raise", "skip"] = "raise",
    network: Load | None = None,
    watch: Callable[[Committed], object] | None = None,
) -> Replayed:
    """Feed a recorded run to callbacks: they are called as in a live run, in the defined sequence.

    They see what the run published, with what they themselves write into `cb_params`. Participants
    of the recorded run that are not given, by name, act as they did; observers of it do not. Of
    several of one class those that come first in the record are meant. A stop
    that is not in the record ends the feed where it would have ended the run (`diverged`). Live
    things, which a recording names only, raise `NotRecorded` when something is asked of them; there
    is no state to save either. Events that failed were never committed, so no recording has them.
    Observers get every event, with a reference as `train_network`; what their errors ask for has no
    effect. Callbacks of a resumed run begin anew.

    Args:
        callbacks: one, or a list or tuple of them, as for a trainer; used up as by a run.
        clock: `"recorded"` waits for nothing; a number is how many times faster than the recorded
            run events come. `run_context.now()` tells the recorded time in both.
        until: the last event to feed: a `seq`, a hook's name, or a function of the event that is
            true at it.
        only: hooks to deliver; None means all.
        echo: print what the callbacks print, too.
        gaps: `"skip"` goes on after events that are missing; what callbacks wrote in between is
            then taken from the record.
        network: gives the parameters of the network at an event, or None; see `checkpoints`.
        watch: called with each event as the replay has committed it, before the next is fed.

    Raises:
        ArgumentTypeError, ArgumentError, CallbackTypeError: for arguments that cannot work; what an
            `__enter__` raised passes too.
        StreamGap: events are missing.
        SequenceError: what stands in the stream is not one run in its order.
        SnapshotError: a recorded snapshot is none.
    """
    if not isinstance(getattr(stream, "about", None), About):
        raise ArgumentTypeError(
            f"stream must be a Recording or another stream of events, got {type(stream).__name__}; a "
            f"path is opened by Recording(path)"
        )
    if gaps not in ("raise", "skip"):
        raise ArgumentError(f"gaps must be 'raise' or 'skip', got {gaps!r}")
    speed = None if clock == "recorded" else positive("clock", clock)
    feed = up_to(contiguous(stream, gaps == "skip"), last_of(until))
    feed = feed if speed is None else paced(feed, speed)
    about, given = stream.about, callback_list(callbacks)
    if any(isinstance(one, Follower) for one in given):
        raise ArgumentError("a Recorder writes down runs that take place; leave it out of a replay")
    if about.plan.valid_frequency is not None:
        refuse_legacy(given)
    if about.plan.resumed is not None:
        logger.warning("run %s was resumed; its callbacks begin anew in the replay", about.run_id)
    performance = _Performance(about, given, _hooks(only), network, watch)
    printed = _Printed(sys.stdout if echo else None)
    with redirect_stdout(printed), start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(serving(performance.roster.workers)):
            # Where the feed may wait, events are published one by one: that keeps no event loop.
            waits = speed is not None or watch is not None
            performance.give(((one,) for one in feed) if waits else [feed])
    return performance.result(printed.lines())


class _Printed(io.StringIO):
    """Keeps what is printed, and prints it if asked."""

    def __init__(self, echo: TextIO | None) -> None:
        super().__init__()
        self._echo = echo

    def write(self, text: str) -> int:
        if self._echo is not None:
            self._echo.write(text)
        return super().write(text)

    def lines(self) -> tuple[str, ...]:
        """What was printed; the last line may be one that was not ended."""
        *lines, last = self.getvalue().split("\n")
        return (*lines, last) if last else tuple(lines)


class _Performance:
    """One replay, from entering the callbacks to their exit; what `Execution` is to a run."""

    def __init__(
        self,
        about: About,
        callbacks: list[Callback],
        only: frozenset[Hook],
        network: Load | None,
        watch: Callable[[Committed], object] | None,
    ) -> None:
        self.roster = Roster(callbacks, replays=True)
        self._recorded, self._only = about, only
        self._log, self._ledger = Log(about.run_id, only, watch), RecordedLedger(network)
        self._player: Player | None = None

    def give(self, bursts: Iterable[Iterable[Committed]]) -> None:
        """Enter the callbacks, feed them, exit them; a callback's error is kept."""
        roster = self.roster
        roster.enter(self._ledger, self._stop_requested)
        for one in roster.participants:
            hooks = one.role.hooks & self._only
            one.role = msgspec.structs.replace(one.role, hooks=hooks)
        members = members_of(roster.participants, self._recorded.roles, self._ledger)
        player = self._player = Player(self._log, members, self._ledger, self._recorded)
        failure: BaseException | None = None
        try:
            roster.watch(self._log, _unheard)
            player.play(bursts, roster)
            failure = player.error or player.failure
        except BaseException as error:
            failure = error
            raise
        finally:
            self._leave(player, failure)

    def result(self, lines: tuple[str, ...]) -> Replayed:
        """What came of it."""
        player = self._player
        assert player is not None
        recorded = {role.name: role for role in self._recorded.roles}
        present = {one.role.name: one.role for one in self.roster.participants}
        roles = [present.get(name) or recorded[name] for name in player.names]
        watchers = tuple(one.role.name for one in self.roster.watchers)
        replace = msgspec.structs.replace
        return Replayed(
            about=replace(self._recorded, roles=tuple(roles), observers=watchers),
            committed=tuple(self._log.kept),
            lines=lines,
            callbacks=frozenset(present),
            diverged=player.diverged,
            error=player.error,
        )

    def _stop_requested(self, mode: Mode) -> bool:
        return self._player is not None and self._player.sequencer.stop_requested(mode)

    def _leave(self, player: Player, failure: BaseException | None) -> None:
        """No event follows."""
        player.error = player.error or self.roster.dismiss()
        try:
            self.roster.exit(failure)
        except Exception as error:
            player.error = error
        self._log.close()
        self._ledger.close_for_good()
        self.roster.leave()


def _unheard(by: str, reason: str) -> None:
    """Observers of a replay are told what has happened; what they ask for changes nothing."""


def _hooks(only: Collection[Hook | str] | None) -> frozenset[Hook]:
    if isinstance(only, str):
        raise ArgumentError(f"only must be a collection of hooks, got the str {only!r}")
    return frozenset(hook_of(hook) for hook in (Hook if only is None else only))
