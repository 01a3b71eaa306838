"""`OnRequestExit`: saves and stops when the process is asked to end."""

import json
import logging
import signal
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from railbus.schemas.errors import ArgumentError
from railbus.schemas.hooks import Mode

from .callback import Callback
from .checkpoint_files import said
from .checkpoint_place import remove, standing
from .checks import flag, path as checked_path
from .context import RunContext

logger = logging.getLogger(__name__)


class OnRequestExit(Callback):
    """Stops the run at the current step and saves it, on a signal, a file or a call; a participant.

    A request comes as a signal, as `{"GracefulExit": 1}` in a file that is read at every step, or
    as `request()` from any thread. At the next `on_train_step_end`, or the end of a validation's
    step, the run is asked to stop; the checkpoint `<directory>/<file_name>_train.ckpt` holds the
    run as it was then. The next start of the same run goes on from it without `resume=`; a run that
    is completed deletes it. The handlers that were there are put back by the first signal, so that
    a second one ends at once, and when the run is over.

    MindSpore's `OnRequestExit`, which ignores SIGTERM unless an environment variable is set. Lightning's
    trainer handles SIGTERM itself, without a file or a call; Keras has none.

    Args:
        save_ckpt: save when asked to exit.
        save_mindir: accepted, without effect: there is no MindIR here.
        file_name: of the checkpoint, without `_train.ckpt`.
        directory: of the checkpoint, made when needed.
        config_file: a JSON file that may ask to exit, `{"GracefulExit": 1}`.
        sig: one signal or several; SIGKILL and SIGSTOP cannot be caught. Handlers can only be set
            in the main thread; where the run is in another one, that is said in the log, and the
            host calls `request()`.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
        CheckpointError: the checkpoint cannot be written; raised at exit.
    """

    def __init__(
        self,
        save_ckpt: bool = True,
        save_mindir: bool = False,
        file_name: str = "Net",
        directory: str | Path = "./",
        config_file: str | Path | None = None,
        sig: int | Collection[int] = (signal.SIGTERM, signal.SIGINT),
    ) -> None:
        if not isinstance(file_name, str) or not file_name or "/" in file_name:
            raise ArgumentError(f"file_name must be a str without '/', got {file_name!r}")
        self._saves = flag("save_ckpt", save_ckpt)
        self._path = checked_path("directory", directory) / f"{file_name}_train.ckpt"
        self._file = None if config_file is None else checked_path("config_file", config_file)
        self.signal_handlers = dict.fromkeys(_signals(sig), self._on_signal)
        self._asked: str | None = None
        self._saving: Any = None
        self._completed = False
        if flag("save_mindir", save_mindir):
            logger.info("save_mindir has no effect: there is no MindIR here")

    def request(self, reason: str = "asked to exit") -> None:
        """Ask to exit; from any thread or signal handler."""
        self._asked = self._asked or reason

    def __enter__(self) -> "OnRequestExit":
        self._asked, self._saving, self._completed = None, None, False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with said(error):
            if self._saving is not None and not self._saving.cancelled():
                self._saving.result()
        if self._completed and error is None:
            remove(self._path)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Stop and save if that was asked."""
        if self._is_asked():
            self._stop(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """The same for what was asked in the epoch's validation."""
        if self._is_asked():
            self._stop(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """Leave a validation, or a lone evaluation."""
        if self._is_asked():
            trains = "epoch_num" in run_context.original_args()
            scope: Mode = "train" if trains else "eval"
            run_context.request_stop(self._asked, scope=scope, interrupts=True)

    def on_train_end(self, run_context: RunContext) -> None:
        """Note how it ended."""
        self._completed = run_context.original_args().status == "completed"

    def resume_points(self, latest: bool) -> list[Path]:
        """What was saved on exit, if it is there."""
        return [self._path] if standing(self._path).exists() else []

    def _stop(self, run_context: RunContext) -> None:
        run_context.request_stop(self._asked, interrupts=True)
        if self._saves and self._saving is None:
            self._saving = run_context.save_checkpoint(self._path)

    def _is_asked(self) -> bool:
        if self._asked is None and self._file is not None and self._file.exists():
            try:
                found = json.loads(self._file.read_text())
            except (OSError, ValueError):  # it is being written
                return False
            if isinstance(found, dict) and found.get("GracefulExit") == 1:
                self.request(f"asked to exit by {self._file}")
        return self._asked is not None

    def _on_signal(self, number: int) -> None:
        self.request(f"received {signal.Signals(number).name}")


def _signals(given: Any) -> tuple[int, ...]:
    several = isinstance(given, Collection) and not isinstance(given, str)
    signals = tuple(given) if several else (given,)
    for one in signals:
        if isinstance(one, bool) or not isinstance(one, int):
            raise ArgumentError(f"sig must be a signal or several, got {given!r}")
        never = (getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP"))
        if one not in signal.valid_signals() or one in never:
            raise ArgumentError(f"sig cannot be {one!r}: it cannot be caught")
    return signals
