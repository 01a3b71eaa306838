"""Signal handlers of a run's callbacks: set while it is on, in the thread that began it."""

import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)


class SignalHandlers:
    """Sets handlers and puts back those that were there before.

    The first signal puts all of them back before its own is called, so that a second one meets what
    was there. Python lets only the main thread set handlers; a run in another one gets none, which
    is said in the log.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._handlers: dict[int, list[Callable[[int], object]]] = {}

    def set(self, wanted: Sequence[Mapping[int, Callable[[int], object]]]) -> None:
        """Set them: every handler of a signal is called, with its number, in order.

        Raises:
            OSError, ValueError: one cannot be set; none is then.
        """
        numbers = list(dict.fromkeys(number for one in wanted for number in one))
        if numbers and threading.current_thread() is not threading.main_thread():
            logger.warning(
                "signals are not handled: the run is in another thread than the main one; call "
                "request()"
            )
            return
        self._handlers = {n: [one[n] for one in wanted if n in one] for n in numbers}
        try:
            for number in numbers:
                self._before[number] = signal.signal(number, self._heed)
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Set those that were there before."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _heed(self, number: int, frame: Any) -> None:
        self.put_back()
        for handler in self._handlers[number]:
            handler(number)
