"""`ModelCheckpoint`: saves the network while it is trained."""

import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import numpy as np

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checkpoint_config import CheckpointConfig
from .context import RunContext


class ModelCheckpoint(Callback):
    """Saves the network on a schedule, or when a monitored value has improved.

    At `on_train_step_end`: `<directory>/<prefix>-<epoch>_<step in epoch>.ckpt`, and at
    `on_train_end` the last step if it was not saved (a stopped run too). With `monitor`: at
    `on_train_epoch_end`, when the value is the best so far, and nothing else. If files of the
    prefix are there when a run begins, the run's own get `<prefix>_1` and so on, so that nothing is
    overwritten. `load_checkpoint` reads either format. MindSpore's `ModelCheckpoint`; the best is
    what Keras calls `save_best_only`.

    Args:
        prefix: of the file names, without "/".
        directory: made when needed; None is the working directory when the run begins.
        config: when to save and what to keep, default `CheckpointConfig()`. With `monitor` only what
            it says of keeping and format counts.
        monitor: a metric, or `eval_loss`; None saves on the schedule.
        mode: whether the smallest (`"min"`) or largest (`"max"`) value is best; needed with `monitor`.

    Attributes:
        latest_ckpt_file_name: the newest file, "" before the first (MindSpore's name).

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
    """

    def __init__(
        self,
        prefix: str = "CKP",
        directory: str | Path | None = None,
        config: CheckpointConfig | None = None,
        *,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
    ) -> None:
        if not isinstance(prefix, str) or not prefix or "/" in prefix:
            raise ArgumentError(f"prefix must be a str without '/', got {prefix!r}")
        if directory is not None and not str(directory).strip():
            raise ArgumentError("directory must not be blank")
        if config is not None and not isinstance(config, CheckpointConfig):
            raise ArgumentTypeError(f"config must be a CheckpointConfig, got {config!r}")
        if (monitor is None) != (mode is None) or mode not in (None, "min", "max"):
            raise ArgumentError(
                f"monitor goes with mode 'min' or 'max', got monitor={monitor!r}, mode={mode!r}"
            )
        self.latest_ckpt_file_name = ""
        self._prefix, self._directory = prefix, directory
        self._config = CheckpointConfig() if config is None else config
        self._monitor, self._mode = monitor, mode

    @property
    def needs(self) -> Mapping[str, int]:  # type: ignore[override]  # follows from the config
        """The network, whenever the schedule saves it."""
        steps = 0 if self._monitor else self._config.save_checkpoint_steps
        return {"train_network": steps} if steps else {}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Settle folder and prefix of this run."""
        folder = Path.cwd() if self._directory is None else Path(self._directory)
        self._folder = folder.absolute()
        self._name = _free_prefix(self._folder, self._prefix)
        self._saved: deque[Path] = deque()
        self._saved_step, self._saved_at = 0, run_context.now()
        self._best: float | None = None
        self._claim(run_context.original_args())

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Save when it is time."""
        if self._monitor is not None:
            return
        config, step = self._config, run_context.original_args().cur_step_num
        if config.save_checkpoint_steps:
            due = step >= self._saved_step + config.save_checkpoint_steps
        else:
            due = run_context.now() - self._saved_at >= config.save_checkpoint_seconds
        if due:
            self._save(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Save when the monitored value has improved."""
        results = run_context.original_args().get("eval_results")
        if self._monitor is None or results is None:
            return
        if self._monitor not in results:
            raise ArgumentError(f"monitor {self._monitor!r} is none of {sorted(results)}")
        value = float(results[self._monitor])
        if np.isnan(value):
            return
        if self._best is None or (
            value < self._best if self._mode == "min" else value > self._best
        ):
            self._best = value
            self._save(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Save the last step of a schedule, if it is not saved."""
        step = run_context.original_args().cur_step_num
        if self._monitor is None and step and step != self._saved_step:
            self._save(run_context)

    def _claim(self, cb_params: CallbackParams) -> None:
        """Two of one prefix and folder would take each other's files."""
        claimed = f"{self._folder}/{self._name}"
        others = list(cb_params.get("checkpoint_prefixes", ()))
        if claimed in others:
            raise ArgumentError(f"two ModelCheckpoints save as {claimed}; give them two prefixes")
        cb_params.checkpoint_prefixes = [*others, claimed]

    def _save(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        number = f"{cb_params.cur_epoch_num}_{cb_params.cur_batch_num}"
        path = self._folder / f"{self._name}-{number}.{self._config.format}"
        run_context.save_checkpoint(path, format=self._config.format, notes=self._notes(cb_params))
        self._saved_step, self._saved_at = cb_params.cur_step_num, run_context.now()
        self.latest_ckpt_file_name = str(path)
        if path not in self._saved:
            self._saved.append(path)
        while (
            self._config.keep_checkpoint_max and len(self._saved) > self._config.keep_checkpoint_max
        ):
            _delete(self._saved.popleft())

    def _notes(self, cb_params: CallbackParams) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        for one in self._config.append_info:
            if one == "epoch_num":
                notes["epoch_num"] = cb_params.cur_epoch_num
            elif one == "step_num":
                notes["step_num"] = cb_params.cur_step_num
            elif not isinstance(one, str):
                notes.update(one)
        return notes


def _free_prefix(folder: Path, prefix: str) -> str:
    """`prefix`, or with the next free number behind it where files of it are there (MindSpore)."""
    pattern = re.compile(rf"{re.escape(prefix)}(?:_([0-9]+))?-[0-9]+_[0-9]+\.(?:ckpt|safetensors)")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    taken = [int(found[1] or 0) for name in names if (found := pattern.fullmatch(name))]
    return f"{prefix}_{max(taken) + 1}" if taken else prefix


def _delete(path: Path) -> None:
    if path.is_dir():
        rmtree(path)
    else:
        path.unlink(missing_ok=True)
