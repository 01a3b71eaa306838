"""The callback list of one run: entered in order, seated, exited in reverse."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from railbus.bus.log import EventLog
from railbus.bus.publisher import Worker
from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.hooks import Mode
from railbus.schemas.params import Ledger

from .callback import Callback
from .context import RunContext, Save
from .filters import kind_of
from .follower import Follower, FollowerWatcher
from .lane import Lane, LoopWorker
from .participant import CallbackParticipant, Tally
from .remote import RemoteParticipant, RemoteWorker, remote_of
from .signals import SignalHandlers
from .views import Keeper
from .watcher import Watcher

logger = logging.getLogger(__name__)


class Roster:
    """A run's callbacks and the workers that run them.

    Callbacks are entered, called and exited in one thread, so that what they open in one place (a
    database, a file) they may use in the others. Observers are entered and exited there too, but
    called in threads of their own.

    Args:
        replays: the run is a recorded one. It waits for every observer, so that none misses an
            event, and has no networks to keep for them.

    Attributes:
        participants: those whom the run waits for, in order.
        watchers: the observers, in order.
    """

    def __init__(self, callbacks: Sequence[Callback], *, replays: bool = False) -> None:
        self.callbacks = tuple(callbacks)
        self._replays = replays
        self.participants: list[CallbackParticipant] = []
        self.watchers: list[Watcher] = []
        self._members: list[CallbackParticipant | Watcher] = []
        here = [one for one in callbacks if not one.observes and remote_of(one) is None]
        self._lane = Lane([callback.deadline for callback in here])
        self._loop, self._remote = LoopWorker(), RemoteWorker()
        self._exits = ExitStack()
        self._signals = SignalHandlers()
        self._save: Save | None = None

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Who has to serve while the run is on."""
        return self._lane, self._loop, self._remote

    @property
    def seated(self) -> list[Callback]:
        """Participants and observers as they were entered, in order."""
        return [member.callback for member in self._members]

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """What each callback has cost, by name."""
        return {member.role.name: member.tally for member in self._members}

    def enter(
        self, ledger: Ledger, stop_requested: Callable[[Mode], bool], save: Save | None = None
    ) -> None:
        """Enter every callback in order and seat what `__enter__` returned.

        Raises:
            ArgumentError: `__enter__` returned a callback with a deadline in the place of one
                without, which is too late to start a thread for it.
            BaseException: what an `__enter__` raised; those entered before are exited first.
        """
        self._save = save
        self._lane.call(lambda: self._enter(ledger, stop_requested))
        try:
            # Here, not where they are entered: a lane's own thread could set none.
            self._signals.set([one.signal_handlers for one in self.seated])
        except BaseException as error:
            self.exit(error)
            raise

    def state_dicts(self) -> dict[str, dict[str, Any]]:
        """What each participant's `state_dict` gives, by its name in this run; called at a commit.

        Observers have none: they are not where the run is.

        Raises:
            ArgumentTypeError: it is no dict.
        """
        found = {}
        for one in self.participants:
            found[one.role.name] = state = one.callback.state_dict()
            if not isinstance(state, dict):
                raise ArgumentTypeError(
                    f"{one.role.name}.state_dict must give a dict, got {type(state).__name__}"
                )
        return found

    def load_state_dicts(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Give each callback the state that it had, where it is known."""
        for name in states.keys() - {one.role.name for one in self.participants}:
            if states[name]:
                logger.warning("the checkpoint holds the state of %s, which is not listed", name)
        for one in self.participants:
            if one.role.name in states:
                self._lane.call(partial(one.callback.load_state_dict, states[one.role.name]))
            elif one.callback.state_dict():
                logger.warning("the checkpoint holds no state of %s; it begins anew", one.role.name)

    def watch(self, log: EventLog, request_stop: Callable[[str, str], None]) -> None:
        """Let the observers follow the run; `request_stop(by, reason)` is their policy's.

        From here on, participants of other processes find their slots.
        """
        slots = [one.slot for one in self.participants if isinstance(one, RemoteParticipant)]
        log.slots = {slot.name: slot for slot in slots}
        for watcher in self.watchers:
            watcher.start(log, request_stop)

    def fail(self, error: BaseException) -> None:
        """The run has failed: what `on_exception` of the observers is about."""
        for watcher in self.watchers:
            watcher.failure = error

    def dismiss(self) -> BaseException | None:
        """The last event was committed: wait for the observers, each for its `drain_seconds`.

        Returns:
            The first error of an observer whose policy is `raise`.
        """
        with ExitStack() as stack:
            for watcher in reversed(self.watchers):
                watcher.close()
                stack.callback(watcher.finish)
        return next((one.error for one in self.watchers if one.error is not None), None)

    def exit(self, error: BaseException | None) -> bool:
        """Exit every callback in reverse; returns whether one of them swallowed `error`.

        Raises:
            BaseException: what the last `__exit__` that raised has raised.
        """
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        try:
            return self._lane.call(lambda: bool(self._exits.__exit__(kind, error, traceback)))
        finally:
            self._signals.put_back()

    def leave(self) -> None:
        """The run is over; what callbacks keep of it does not keep all of it."""
        for one in self.participants:
            one.leave()

    def _enter(self, ledger: Ledger, stop_requested: Callable[[Mode], bool]) -> None:
        names: Counter[str] = Counter()
        with ExitStack() as stack:
            for callback in self.callbacks:
                seated = replacement(callback, callback.__enter__())
                name = self._name(seated, names)
                member = self._seat(name, seated, ledger, stop_requested)
                stack.push(_Exit(callback, member))
                late = member.role.deadline is not None and self._lane.shortest is None
                if late and not isinstance(member, RemoteParticipant):
                    raise ArgumentError(
                        f"{name} has a deadline and takes the place of a "
                        f"{type(callback).__name__} without; give that one the deadline"
                    )
                self._members.append(member)
            views = [one.views for one in self.watchers if one.views is not None]
            if views and not self._replays:
                keeper = self._participant(
                    "Keeper of networks", Keeper(views), ledger, stop_requested
                )
                self.participants.insert(0, keeper)
            self._exits = stack.pop_all()

    def _name(self, seated: Callback, names: Counter[str]) -> str:
        """What it is called in this run; `names` counts those before."""
        remote = remote_of(seated)
        name = kind_of(seated) if remote is None else remote.slot
        names[name] += 1
        if remote is None:
            return name if names[name] == 1 else f"{name}#{names[name]}"
        if names[name] > 1:
            raise ArgumentError(f"slot {name!r} stands in the list twice; name them apart")
        if self._replays:
            raise ArgumentError(
                f"Remote({name!r}) has no peer in a replay; list the callback itself"
            )
        return name

    def _seat(
        self, name: str, seated: Callback, ledger: Ledger, stop_requested: Callable[[Mode], bool]
    ) -> CallbackParticipant | Watcher:
        if seated.observes:
            watcher = (
                FollowerWatcher(name, seated, stop_requested, self._replays, lambda: self.tallies)
                if isinstance(seated, Follower)
                else Watcher(name, seated, stop_requested, self._replays)
            )
            self.watchers.append(watcher)
            return watcher
        self.participants.append(self._participant(name, seated, ledger, stop_requested))
        return self.participants[-1]

    def _participant(
        self, name: str, seated: Callback, ledger: Ledger, stop_requested: Callable[[Mode], bool]
    ) -> CallbackParticipant:
        context = RunContext(ledger, stop_requested, name, self._save)
        if remote_of(seated) is not None:
            return RemoteParticipant(name, seated, context, ledger, self._remote, self._loop)
        return CallbackParticipant(name, seated, context, ledger, self._lane, self._loop)


class _Exit:
    """Exits one callback, unless it is still stuck in a hook."""

    def __init__(self, callback: Callback, member: CallbackParticipant | Watcher) -> None:
        self._callback, self._member = callback, member

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if self._member.revoked:
            logger.error("%s is not exited, it is still in a hook", self._member.role.name)
            return None
        return self._callback.__exit__(kind, error, traceback)


def replacement(callback: Callback, entered: object) -> Callback:
    """Who takes the place of `callback`, whose `__enter__` gave `entered`."""
    if isinstance(entered, Callback):
        return entered
    if entered is not None:
        logger.warning(
            "%s.__enter__ returned a %s, which is no Callback and is not used",
            type(callback).__name__,
            type(entered).__name__,
        )
    return callback
