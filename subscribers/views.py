"""The network at some events, on its way from the thread that trains to an observer."""

import threading
from collections.abc import Sequence
from typing import Any

from .callback import Callback
from .context import RunContext

KEPT = 2  # networks that wait for an observer


class NetworkView:
    """The network at one event, for an observer that declared that it needs it.

    Attributes:
        params: nested dict of the trained arrays.
    """

    __slots__ = ("params",)

    def __init__(self, params: Any) -> None:
        self.params = params


class Views:
    """Networks on their way to one observer, by the `seq` of their event; at most `KEPT`."""

    def __init__(self, every: int, waits: bool) -> None:
        self.every = every
        self.closed = False
        self._waits = waits
        self._kept: dict[int, NetworkView] = {}
        self._room = threading.Condition()

    def keep(self, seq: int, params: Any) -> None:
        """The network at event `seq`; waits for room, or lets the oldest go."""
        with self._room:
            if self._waits:
                self._room.wait_for(lambda: self.closed or len(self._kept) < KEPT)
            elif len(self._kept) == KEPT:
                del self._kept[next(iter(self._kept))]
            if not self.closed:
                self._kept[seq] = NetworkView(params)

    def take(self, seq: int) -> NetworkView | None:
        """The network at event `seq`, if it was kept; older ones go."""
        with self._room:
            found = self._kept.pop(seq, None)
            self._kept = {k: view for k, view in self._kept.items() if k > seq}
            self._room.notify_all()
            return found

    def close(self) -> None:
        """Nobody takes any more."""
        with self._room:
            self.closed, self._kept = True, {}
            self._room.notify_all()


class Keeper(Callback):
    """Takes the references to the network that observers need, in the thread that trains."""

    def __init__(self, views: Sequence[Views]) -> None:
        self._views = views

    def on_train_step_end(self, run_context: RunContext) -> None:
        """No copy is made: the arrays of a step are never changed."""
        cb_params = run_context.original_args()
        for views in self._views:
            if cb_params.cur_step_num % views.every == 0 and not views.closed:
                views.keep(run_context.event.seq, cb_params.train_network.params)
