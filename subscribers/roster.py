"""The callback list of one run: entered in order, seated as participants, exited in reverse."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from railbus.bus.publisher import Worker
from railbus.schemas.errors import ArgumentError
from railbus.schemas.hooks import Mode
from railbus.schemas.params import Ledger

from .callback import Callback
from .lane import Lane, LoopWorker
from .participant import CallbackParticipant

logger = logging.getLogger(__name__)


class Roster:
    """A run's callbacks and the workers that run them.

    Callbacks are entered, called and exited in one thread, so that what they open in one place (a
    database, a file) they may use in the others.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)
        self.participants: list[CallbackParticipant] = []
        self._lane = Lane([callback.deadline for callback in callbacks])
        self._loop = LoopWorker()
        self._exits = ExitStack()

    @property
    def workers(self) -> tuple[Worker, Worker]:
        """Who has to serve while the run is on."""
        return self._lane, self._loop

    def enter(self, ledger: Ledger, stop_requested: Callable[[Mode], bool]) -> None:
        """Enter every callback in order and seat what `__enter__` returned.

        Raises:
            ArgumentError: `__enter__` returned a callback with a deadline in the place of one
                without, which is too late to start a thread for it.
            BaseException: what an `__enter__` raised; those entered before are exited first.
        """
        self._lane.call(lambda: self._enter(ledger, stop_requested))

    def exit(self, error: BaseException | None) -> bool:
        """Exit every callback in reverse; returns whether one of them swallowed `error`.

        Raises:
            BaseException: what the last `__exit__` that raised has raised.
        """
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        return self._lane.call(lambda: bool(self._exits.__exit__(kind, error, traceback)))

    def leave(self) -> None:
        """The run is over; what callbacks keep of it does not keep all of it."""
        for one in self.participants:
            one.leave()

    def _enter(self, ledger: Ledger, stop_requested: Callable[[Mode], bool]) -> None:
        names: Counter[str] = Counter()
        with ExitStack() as stack:
            for callback in self.callbacks:
                seated = _replacement(callback, callback.__enter__())
                kind = type(seated).__name__
                names[kind] += 1
                participant = CallbackParticipant(
                    kind if names[kind] == 1 else f"{kind}#{names[kind]}",
                    seated,
                    ledger,
                    stop_requested,
                    self._lane,
                    self._loop,
                )
                stack.push(_Exit(callback, participant))
                if participant.role.deadline is not None and self._lane.shortest is None:
                    raise ArgumentError(
                        f"{participant.role.name} has a deadline and takes the place of a "
                        f"{type(callback).__name__} without; give that one the deadline"
                    )
                self.participants.append(participant)
            self._exits = stack.pop_all()


class _Exit:
    """Exits one callback, unless it is still stuck in a hook that missed its deadline."""

    def __init__(self, callback: Callback, participant: CallbackParticipant) -> None:
        self._callback, self._participant = callback, participant

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if self._participant.revoked:
            logger.error("%s is not exited, it is still in a hook", self._participant.role.name)
            return None
        return self._callback.__exit__(kind, error, traceback)


def _replacement(callback: Callback, entered: object) -> Callback:
    if isinstance(entered, Callback):
        return entered
    if entered is not None:
        logger.warning(
            "%s.__enter__ returned a %s, which is no Callback and is not used",
            type(callback).__name__,
            type(entered).__name__,
        )
    return callback
