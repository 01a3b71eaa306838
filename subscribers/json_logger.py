"""`JSONLogger`: writes a run as JSON Lines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from .checks import count, flag, folder, path as checked_path
from .closing import Closing
from .context import RunContext
from .jsonable import jsonable
from .outputs import loss_of
from .readings import results_of


class JSONLogger(Closing):
    """Writes one JSON object per line: steps, epochs, and how the run ended.

    Each has `event`, `run_id`, `time` (seconds since the run's begin), `wall_time` (Unix seconds),
    `epoch` and `step` (counted over all epochs), and:

    event   | at                                | and
    --------+-----------------------------------+-----------------------------------------
    `step`  | `on_train_step_end`               | `loss`, `hyperparams`
    `epoch` | `on_train_epoch_end`              | mean `loss`, `hyperparams`, `metrics`
    `end`   | `on_train_end` and `on_exception` | `status`, `reason`, `by`

    `metrics` is what the epoch's validation found, absent without one. `reason` and `by` say why
    and by whom a run was stopped or failed, else they are null. JSON has no NaN and no infinity:
    they are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`. A run that is resumed goes on in
    its file: its lines from after the checkpoint leave it. Every line goes to the system at once; the file
    is closed when the run ends, however it ends. An observer that misses nothing: the run waits where it is 4096
    events behind. Composer's and OLMo-core's file
    loggers; MindSpore, Keras and Lightning have none.

    Args:
        path: the file; missing folders are made.
        append: go on below the lines that are there; otherwise each new run replaces the file.
        every: steps from one step to the next that is written, counted over all epochs; 0: none.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
        OSError: the file cannot be written.
    """

    observes, lag = True, 4096

    def __init__(self, path: str | os.PathLike[str], append: bool = False, every: int = 1) -> None:
        self._path = checked_path("path", path)
        self._append = flag("append", append)
        self._every = count("every", every, 0)
        self._file: TextIO | None = None

    def __enter__(self) -> "JSONLogger":
        folder("path", self._path.parent)
        return self

    def on_train_begin(self, run_context: RunContext) -> None:
        """Open the file."""
        self._close()
        cb_params = run_context.original_args()
        resumed = "resumed_step" in cb_params
        if resumed:
            done = {"step": cb_params.resumed_step, "epoch": cb_params.resumed_epoch}
            _go_back(self._path, cb_params.run_id, done)
        goes_on = self._append or resumed
        cut = goes_on and _is_cut(self._path)
        self._file = self._path.open("a" if goes_on else "w", buffering=1, encoding="utf-8")
        if cut:
            self._file.write("\n")

    def on_train_step_end(self, run_context: RunContext) -> None:
        """A line for the step, if it is due."""
        cb_params = run_context.original_args()
        if self._every and cb_params.cur_step_num % self._every == 0:
            loss = loss_of(cb_params.net_outputs)
            hyperparams = run_context.hyperparams()
            self._write(run_context, "step", {"loss": loss, "hyperparams": hyperparams})

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """A line for the epoch."""
        cb_params = run_context.original_args()
        values = {"loss": cb_params.get("epoch_loss"), "hyperparams": run_context.hyperparams()}
        results = results_of(cb_params)
        self._write(run_context, "epoch", values | ({"metrics": results} if results else {}))

    def on_train_end(self, run_context: RunContext) -> None:
        """How it ended; close the file."""
        self._end(run_context)

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """How it ended; close the file."""
        self._end(run_context)

    def _end(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        why = {"reason": cb_params.get("stop_reason"), "by": cb_params.get("stop_by")}
        self._write(run_context, "end", {"status": cb_params.status, **why})
        self._close()

    def _write(self, run_context: RunContext, event: str, values: dict[str, Any]) -> None:
        if self._file is None:
            return
        cb_params = run_context.original_args()
        line = {
            "event": event,
            "run_id": cb_params.run_id,
            "time": run_context.now(),
            "wall_time": run_context.wall_time(),
            "epoch": cb_params.get("cur_epoch_num"),
            "step": cb_params.cur_step_num,
            **values,
        }
        self._file.write(json.dumps(jsonable(line), allow_nan=False) + "\n")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _go_back(path: Path, run_id: str, done: Mapping[str, int]) -> None:
    """Drop the lines at the end that a resumed run wrote about what is not `done` yet."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    while lines and _is_later(lines[-1], run_id, done):
        lines.pop()
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(b"".join(lines))
    beside.replace(path)


def _is_later(line: bytes, run_id: str, done: Mapping[str, int]) -> bool:
    try:
        found = json.loads(line)
        event = found["event"]
        late = event == "end" or found[event] > done[event]
        return bool(found["run_id"] == run_id and late)
    except (ValueError, KeyError, TypeError):
        return not line.endswith(b"\n")  # cut off by the crash


def _is_cut(path: os.PathLike[str]) -> bool:
    """Whether the file's last line has no end, as after a crash."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:
        return False
