"""A replay that goes on one event at a time, when it is told to."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from queue import SimpleQueue
from typing import Any

from railbus.bus.about import About
from railbus.bus.stream import Stream
from railbus.schemas.events import Committed, Gap

from .callback import Callback
from .replay import replay
from .replayed import Replayed


class Stepper:
    """Feeds a stream to callbacks in a thread that waits before each event.

    Args:
        options: further arguments of `replay`.

    Raises:
        BaseException: what `replay` raised before the first event.
    """

    def __init__(
        self, stream: Stream, callbacks: Sequence[Callback], options: Mapping[str, Any]
    ) -> None:
        self._stream, self._callbacks, self._options = stream, list(callbacks), options
        self._go: SimpleQueue[bool] = SimpleQueue()
        self._came: SimpleQueue[Committed | None] = SimpleQueue()
        self._replayed: Replayed | None = None
        self._error: BaseException | None = None
        self._outside = sys.stdout
        self._newest: Committed | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, name="railbus replay", daemon=True)
        self._thread.start()
        self._came.get()  # it has come to the first event, or failed before
        if self._error is not None:
            raise self._error

    @property
    def about(self) -> About:
        """The run as it was set up."""
        return self._stream.about

    def __iter__(self) -> Iterator[Committed | Gap]:
        if not self._pause():
            return
        for item in self._stream:
            yield item
            if isinstance(item, Committed) and not self._pause():
                return

    def step(self) -> Committed | None:
        """Feed the next event; as it was committed, None after the last.

        Raises:
            BaseException: what the replay could not go on with.
        """
        if self._over:
            return None
        self._outside = sys.stdout
        self._go.put(True)
        entry = self._came.get()
        if entry is None:
            self._over = True
            self._thread.join()
            if self._error is not None:
                raise self._error
        return entry

    def finish(self) -> Replayed:
        """Feed what is left; what came of all."""
        while self.step() is not None:
            pass
        assert self._replayed is not None
        if self._replayed.error is not None:
            raise self._replayed.error
        return self._replayed

    def close(self) -> None:
        """Feed no more; the callbacks are exited."""
        self._go.put(False)
        self._thread.join()

    def _pause(self) -> bool:
        """Tell of the newest event and wait for leave; what is printed meanwhile is not theirs."""
        with redirect_stdout(self._outside):
            self._came.put(self._newest)
            return self._go.get()

    def _note(self, entry: Committed) -> None:
        self._newest = entry

    def _run(self) -> None:
        try:
            self._replayed = replay(
                self, self._callbacks, gaps="skip", watch=self._note, **self._options
            )
        except BaseException as error:
            self._error = error
        self._came.put(None)
