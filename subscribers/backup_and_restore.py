"""`BackupAndRestore`: goes on with an interrupted run by itself."""

import re
from pathlib import Path
from types import TracebackType
from typing import Any

from railbus.schemas.errors import ArgumentTypeError

from .callback import Callback
from .checkpoint_files import said
from .checkpoint_place import named, remove
from .checks import count, flag, path as checked_path
from .context import RunContext


class BackupAndRestore(Callback):
    """Keeps a backup of the run, and goes on with it when the run is started again; a participant.

    At `on_train_epoch_end` or, with a number, at `on_train_step_end`:
    `<backup_dir>/backup-<step>.ckpt`, which holds all that `ModelCheckpoint` saves; the one before
    it goes once it is safe. When a run begins and a backup is there, the run goes on from it without
    `resume=`. At the end of a run that was completed the backup is deleted; one that was stopped or
    has failed keeps it (Keras deletes it then, too). MindSpore's restores the parameters and trains
    all epochs again.

    MindSpore's and Keras' `BackupAndRestore`; Lightning has none (`ckpt_path="last"`).

    Args:
        backup_dir: made when needed; for this run only.
        save_freq: `"epoch"`, or a number of training steps (Keras' meaning).
        delete_checkpoint: delete the backup at the end of a run that was completed.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
        CheckpointError: a backup cannot be written; raised at its next one, or at exit.
    """

    def __init__(
        self, backup_dir: str | Path, save_freq: str | int = "epoch", delete_checkpoint: bool = True
    ) -> None:
        if isinstance(save_freq, str) and save_freq != "epoch":
            raise ArgumentTypeError(f"save_freq must be 'epoch' or a number, got {save_freq!r}")
        self._folder = checked_path("backup_dir", backup_dir)
        self._steps = 0 if isinstance(save_freq, str) else count("save_freq", save_freq, 1)
        self._deletes = flag("delete_checkpoint", delete_checkpoint)
        self._saving: Any = None
        self._saved_step = 0
        self._completed = False
        if self._steps:
            self.needs = {"train_network": self._steps}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with said(error):
            self._settle()
        if self._completed and error is None and self._deletes:
            for _, path in self._backups():
                remove(path)

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        self._saving, self._saved_step, self._completed = None, 0, False

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Back up when it is time."""
        if self._steps and run_context.original_args().cur_step_num % self._steps == 0:
            self._save(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Back up the epoch."""
        if not self._steps:
            self._save(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Keep a stopped run for the next start."""
        cb_params = run_context.original_args()
        self._completed = cb_params.status == "completed"
        if not self._completed and cb_params.cur_step_num:
            self._save(run_context)

    def resume_points(self, latest: bool) -> list[Path]:
        """The backups that are there."""
        return [path for _, path in self._backups()]

    def _save(self, run_context: RunContext) -> None:
        self._settle()
        step = run_context.original_args().cur_step_num
        if step != self._saved_step:
            path = self._folder / f"backup-{step}.ckpt"
            self._saving, self._saved_step = run_context.save_checkpoint(path), step

    def _settle(self) -> None:
        """Once a backup is safe, those before it go; not earlier, whenever the process is killed."""
        saving, self._saving = self._saving, None
        if saving is None or saving.cancelled():
            return
        safe = saving.result()
        for _, path in self._backups():
            if path != safe:
                remove(path)

    def _backups(self) -> list[tuple[int, Path]]:
        found = [
            (re.fullmatch(r"backup-([0-9]+)\.ckpt", one.name), one) for one in named(self._folder)
        ]
        return [(int(match[1]), path) for match, path in found if match]
