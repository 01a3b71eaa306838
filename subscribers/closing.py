"""What several callbacks do alike: close what they have opened, however the run ends."""

from abc import abstractmethod
from types import TracebackType

from .callback import Callback
from .context import RunContext


class Closing(Callback):
    """Closes at `on_train_end` and `on_exception`, and at the latest when it is left."""

    @abstractmethod
    def _close(self) -> None:
        """Close what is open; more often than once does no harm."""

    def on_train_end(self, run_context: RunContext) -> None:
        """Close."""
        self._close()

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """Close."""
        self._close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
