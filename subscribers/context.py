"""`RunContext`: what a hook is called with."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np

from railbus.schemas.errors import ArgumentError, BusClosed, NotTraced, ObserverError
from railbus.schemas.events import Event, StopRequest
from railbus.schemas.hooks import Hook, Mode
from railbus.schemas.params import CallbackParams, Ledger, Snapshot

MODES: tuple[Mode, ...] = ("train", "eval")

Save: TypeAlias = Callable[[Hook, Path, str, Mapping[str, Any], bool], "Future[Path]"]


class RunContext:
    """A callback's side of a run: the parameters, the clock, stops and checkpoints."""

    def __init__(
        self,
        ledger: Ledger,
        stop_requested: Callable[[Mode], bool],
        by: str,
        save: Save | None = None,
    ) -> None:
        self._ledger: Ledger | None = ledger
        self._params = ledger.params
        self._stop_requested = stop_requested
        self._by = by
        self._save = save
        self._event: Event | None = None
        self._stop: StopRequest | None = None

    def original_args(self) -> CallbackParams:
        """The run's `cb_params` (MindSpore's name)."""
        return self._params if self._ledger is None else self._ledger.params

    def hyperparams(self) -> dict[str, Any]:
        """The optimizer's injected hyperparameters by name, as `cb_params` has them; maybe none."""
        if self._ledger is None:
            return {}
        names = sorted(self._ledger.traced.keys() - {"train_network"})
        return {name: self._ledger.params[name] for name in names}

    def request_stop(
        self, reason: str | None = None, scope: Mode | None = None, *, interrupts: bool = False
    ) -> None:
        """Ask the run to stop; part of this event's ack, never lost and never taken back (C3).

        Args:
            reason: shown in the result, default "asked in <hook>".
            scope: default is the current mode: in a validation only that is cut short. "train"
                in a validation cuts it and stops training too.
            interrupts: the run is to go on another day: when it is resumed it trains on. Otherwise
                the stop belongs to the run, and resuming it does only what closes it.

        Raises:
            ArgumentError: for another scope, or "eval" while nothing is evaluated.
            BusClosed: outside a hook; a run is stopped from outside with `run.request_stop`.
        """
        event = self._event
        if event is None:
            raise BusClosed(
                "request_stop outside a hook; from elsewhere call request_stop of the run",
                subscriber=self._by,
            )
        mode = self._mode(event)
        wanted = mode if scope is None else scope
        if wanted not in ("train", "eval"):
            raise ArgumentError(f"scope must be 'train', 'eval' or None, got {scope!r}")
        if wanted == "eval" and mode == "train":
            raise ArgumentError("scope='eval' while training: there is no evaluation to stop")
        if reason is None:
            reason = f"asked in {event.hook.value}"
        if not isinstance(reason, str):
            raise ArgumentError(f"reason must be a str or None, got {type(reason).__name__}")
        if self._stop is None or (self._stop.scope, wanted) == ("eval", "train"):
            self._stop = StopRequest(
                by=self._by, at=event.seq, reason=reason, scope=wanted, interrupts=interrupts
            )

    def seen(self) -> Event:
        """The event as it is seen here: its snapshot with the changes of those before (C2).

        Raises:
            BusClosed: outside a hook.
        """
        if self._ledger is None:
            return self.event
        return msgspec.structs.replace(self.event, snapshot=self._ledger.snapshot())

    def writable(self, name: str) -> bool:
        """Whether the hyperparameter `name` may be assigned; one that follows a schedule may not."""
        if self._ledger is None or name not in self._ledger.traced:
            return False
        try:
            self._ledger.traced[name](self._ledger.params[name])
        except NotTraced:
            return False
        except ArgumentError:  # of the value that it has
            pass
        return True

    def get_stop_requested(self, scope: Mode | None = None) -> bool:
        """Whether a stop of the current mode, or of `scope`, was asked so far, by anyone listed."""
        mode = scope or (self._mode(self._event) if self._event is not None else "train")
        own = self._stop is not None and self._stop.scope in ("train", mode)
        return own or self._stop_requested(mode)

    def save_checkpoint(
        self,
        path: str | Path,
        *,
        format: str = "ckpt",
        notes: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> "Future[Path]":
        """Save the run as it is once this event is committed: every ack to it, none to a later one.

        In an epoch-begin, step-end, epoch-end or end hook of training, and in `on_exception`.

        Args:
            path: the checkpoint to be; replaced at once where there is one.
            format: `"ckpt"`, an Orbax folder from which the run can be resumed, or `"safetensors"`,
                one file with the network.
            notes: JSON values that go with it.
            wait: let the run wait until it is written; otherwise it is written in the background.

        Returns:
            Done when the checkpoint is safe; cancelled if the event is not committed.

        Raises:
            ArgumentError: in another hook.
            BusClosed: outside a hook.
        """
        if self._save is None:
            raise ArgumentError("there is no trainer here whose state could be saved")
        return self._save(self.event.hook, Path(path), format, notes or {}, wait)

    def now(self) -> float:
        """The event's own time: seconds since the run's begin, recorded and replayable.

        It is when the device was there, which may be ahead of the callbacks; for a step inside of
        a block it is interpolated between the block's start and end.
        """
        return self.event.time_ns / 1e9

    def wall_time(self) -> float:
        """The event's calendar time in seconds (Unix), the twin of `now()`."""
        return self.event.wall_ns / 1e9

    @property
    def event(self) -> Event:
        """The event that is being handled.

        Raises:
            BusClosed: outside a hook.
        """
        if self._event is None:
            raise BusClosed("a run context tells time only inside a hook", subscriber=self._by)
        return self._event

    def _mode(self, event: Event) -> Mode:
        mode = event.hook.mode
        if mode is None:
            mode = "eval" if self.original_args().get("mode") == "eval" else "train"
        return mode

    def _close(self) -> StopRequest | None:
        """The hook has returned: what it asked for."""
        stop, self._event, self._stop = self._stop, None, None
        return stop

    def _revoke(self) -> None:
        """The run has gone on without this callback: what it does from here has no effect."""
        self._ledger = self._event = None

    def _leave(self) -> None:
        """The run is over, and need not stay in memory for who keeps this."""
        stopped = {mode: self._stop_requested(mode) for mode in MODES}
        self._stop_requested = stopped.__getitem__
        self._ledger = None


class ObserverContext(RunContext):
    """What an observer's hook is called with: one committed event, read-only."""

    def __init__(self, stop_requested: Callable[[Mode], bool], by: str) -> None:
        super().__init__(Ledger(), stop_requested, by)
        self._seen: Snapshot | None = None

    def hyperparams(self) -> dict[str, Any]:
        """The numbers of numpy's in the snapshot: those that the optimizer injects are."""
        shown = self.original_args().items()
        return {
            name: value
            for name, value in shown
            if isinstance(value, np.generic) and value.dtype.kind in "fiuV"  # V: bfloat16
        }

    def original_args(self) -> Snapshot:  # type: ignore[override]  # the read-only twin
        """`cb_params` as it was at the event."""
        if self._seen is None:
            self._seen = self.event.cb_params
        return self._seen

    def request_stop(
        self, reason: str | None = None, scope: Mode | None = None, *, interrupts: bool = False
    ) -> NoReturn:
        """Refused.

        Raises:
            ObserverError: always.
        """
        self._refuse("stop the run")

    def save_checkpoint(self, path: str | Path, **_: Any) -> NoReturn:
        """Refused.

        Raises:
            ObserverError: always.
        """
        self._refuse("save the run")

    def _refuse(self, what: str) -> NoReturn:
        raise ObserverError(
            f"an observer cannot {what}, its events have happened already; make the callback "
            "a participant with observes = False",
            subscriber=self._by,
        )

    def _show(self, event: Event, network: Any) -> None:
        """The next event, with the handle of the network where it was kept for it."""
        self._event, self._seen = event, None
        if network is not None:
            self._seen = Snapshot({**event.cb_params, "train_network": network})
