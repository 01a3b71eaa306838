"""The network at some events, on its way from the thread that trains to an observer."""

import threading
from collections.abc import Sequence
from typing import Any

from railbus.bus.observer import INTERRUPT_POLL
from railbus.bus.rule import passes
from railbus.bus.sequencer import Role
from railbus.schemas.events import Event
from railbus.schemas.hooks import Hook

from .callback import Callback
from .context import RunContext

KEPT = 2  # networks that wait for an observer


class Views:
    """Handles of the network for one observer, by the `seq` of their event; at most `KEPT`.

    Args:
        every: steps of training from one to the next.
        role: the observer's; what its rules shut out is not kept.
        waits: whether the run waits for room; otherwise the oldest handle makes room.
    """

    def __init__(self, every: int, role: Role, waits: bool) -> None:
        self.every = every
        self._role, self._waits = role, waits
        self._closed = False
        self._kept: dict[int, Any] = {}
        self._room = threading.Condition()

    def keep(self, event: Event, handle: Any) -> None:
        """The network at `event`, if the observer gets that."""
        if event.hook not in self._role.hooks or self._closed:
            return
        handle.params  # noqa: B018  # computed here and now
        with self._room:
            while self._waits and not self._room.wait_for(
                lambda: self._closed or len(self._kept) < KEPT, INTERRUPT_POLL
            ):
                pass
            if not self._waits and len(self._kept) == KEPT:
                del self._kept[next(iter(self._kept))]
            if not self._closed:
                self._kept[event.seq] = handle

    def due(self, hook: Hook, step: int, epoch: int) -> bool:
        """Whether the observer looks at the network there."""
        return step % self.every == 0 and passes(self._role.rules, hook, step, epoch)

    def take(self, event: Event) -> Any:
        """The handle at `event`, None where none was kept; older ones go."""
        with self._room:
            found = self._kept.pop(event.seq, None)
            self._kept = {seq: handle for seq, handle in self._kept.items() if seq > event.seq}
            self._room.notify_all()
        return None if event.hook is Hook.EXCEPTION else found

    def close(self) -> None:
        """Nobody takes any more."""
        with self._room:
            self._closed, self._kept = True, {}
            self._room.notify_all()


class Keeper(Callback):
    """Keeps the handles that observers need, in the thread that trains."""

    def __init__(self, views: Sequence[Views]) -> None:
        self._views = views

    def on_train_begin(self, run_context: RunContext) -> None:
        """Keep the initial values."""
        for views in self._views:
            views.keep(run_context.event, run_context.original_args().train_network)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Keep those after the step, where it is time; no copy is made."""
        cb_params = run_context.original_args()
        for views in self._views:
            if views.due(Hook.TRAIN_STEP_END, cb_params.cur_step_num, cb_params.cur_epoch_num):
                views.keep(run_context.event, cb_params.train_network)
