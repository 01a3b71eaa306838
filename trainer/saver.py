"""Saves what callbacks ask for, once the event that they asked at is committed."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from railbus.schemas.errors import ArgumentError, BusClosed
from railbus.schemas.hooks import Hook

from .checkpoint import save_checkpoint
from .program import TrainState
from .resume import write

logger = logging.getLogger(__name__)

INSIDE = (Hook.TRAIN_EPOCH_BEGIN, Hook.TRAIN_STEP_END)  # of an epoch
BETWEEN = (Hook.TRAIN_EPOCH_END, Hook.TRAIN_END)


class _Request(NamedTuple):
    path: Path
    format: str
    notes: Mapping[str, Any]
    wait: bool
    done: Future[Path]


class Saver:
    """A run's checkpoints: asked for in a hook, cut at the commit, written in order in a thread.

    A cut has every ack to its event and none to a later one. After a stop it is that of the event
    which stopped the run: one that was interrupted goes on from there as if it had not been, and one
    that a callback has ended is closed again. For the same reason the weights that callbacks assign
    in `on_train_end` (an average, the best) are not part of it: they do not fit the optimizer's
    state. A file of the network alone that is asked for there is the network that the run ends with.
    An interruption inside of a validation takes the run back to before it: it is done again.

    Args:
        here: the state at the present event, which nothing overwrites.
        cut: packs all else of the run at the present event.
        likely: whether somebody will save, though nobody has yet.
    """

    def __init__(
        self,
        here: Callable[[], TrainState],
        cut: Callable[[], bytes],
        likely: Callable[[], bool] = lambda: False,
    ) -> None:
        self._here, self._cut, self._likely = here, cut, likely
        self._asked: list[_Request] = []
        self._held: tuple[TrainState, bytes] | None = None
        self._stopped: tuple[TrainState, bytes] | None = None
        self._trained: TrainState | None = None  # before what is assigned in `on_train_end`
        self._thread = ThreadPoolExecutor(1, "railbus-saver")

    @property
    def due(self) -> bool:
        """Whether somebody waits for the commit."""
        return bool(self._asked)

    def ask(
        self, hook: Hook, path: Path, format: str, notes: Mapping[str, Any], wait: bool
    ) -> "Future[Path]":
        """Save once the present event is committed; the future is done when the file is safe.

        Args:
            wait: let the run wait for it.

        Raises:
            ArgumentError: it is none of the events at which a run can be cut.
        """
        allowed = (*INSIDE, *BETWEEN, Hook.EXCEPTION)
        if hook not in allowed:
            names = ", ".join(one.value for one in allowed)
            raise ArgumentError(f"a checkpoint can be saved in {names}, not in {hook.value}")
        if hook is Hook.TRAIN_END and self._trained is None and self._stopped is None:
            self._trained = self._here()
        self._likely = lambda: True
        done: Future[Path] = Future()
        self._asked.append(_Request(path, format, notes, wait, done))
        return done

    def hold(self) -> None:
        """A validation begins, in which the run may be interrupted."""
        if not self._likely():
            return
        try:
            self._held = self._here(), self._cut()
        except Exception:  # it will be said when somebody saves
            self._held = None

    def interrupted(self) -> None:
        """The run is interrupted inside of that validation, whose results are not whole."""
        self._stopped = self._stopped or self._held

    def committed(self, hook: Hook, stopped: bool) -> None:
        """An event was committed; cut the run here where that is wanted."""
        if hook not in INSIDE and hook not in BETWEEN:
            return
        try:
            if stopped and self._stopped is None:
                self._stopped = self._trained or self._here(), self._cut()
            if self._asked:
                state, cut = self._stopped or (self._trained or self._here(), self._cut())
                self._serve(state, cut, self._here() if hook is Hook.TRAIN_END else state)
        except Exception as error:
            self.refuse(error)
        if hook is Hook.TRAIN_EPOCH_END:
            self._held = None

    def failed(self, state: TrainState | None, cut: bytes | None) -> None:
        """The run is over; where it has failed, it left that behind, unless it is lost."""
        if state is not None and cut is not None:
            self._serve(state, cut, state)
        self.drop()

    def refuse(self, error: Exception) -> None:
        """The run cannot be cut: that is said to those who asked, if any."""
        for one in self._asked:
            _fail(one, error)
        self._asked.clear()

    def drop(self) -> None:
        """The event that they asked at is not committed."""
        for one in self._asked:
            one.done.cancel()
        self._asked.clear()

    def close(self) -> None:
        """Wait until all is written, and let go of the run."""
        self._thread.shutdown()
        self._here = self._cut = self._likely = _over
        self._held = self._stopped = self._trained = None

    def _serve(self, state: TrainState, cut: bytes, network: TrainState) -> None:
        for one in self._asked:
            alone = one.format == "safetensors"
            self._thread.submit(_carry_out, one, network if alone else state, cut)
            if one.wait:
                wait([one.done])
        self._asked.clear()


def _carry_out(request: _Request, state: TrainState, cut: bytes) -> None:
    path, done = request.path, request.done
    try:
        if request.format == "safetensors":
            network = SimpleNamespace(params=state.network.params, state=state.network.rest)
            save_checkpoint(network, path, append_dict=request.notes)
        else:
            write(path, state, cut, request.notes)
    except BaseException as error:
        _fail(request, error)
    else:
        done.set_result(path)


def _fail(request: _Request, error: BaseException) -> None:
    """Said here and now: who asked may never look, or look when the run has failed as well."""
    logger.error("checkpoint '%s' is not saved", request.path, exc_info=error)
    request.done.set_exception(error)


def _over() -> Any:
    raise BusClosed("the run is over, there is nothing left to save")
