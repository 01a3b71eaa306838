"""`export`: a recording as JSON Lines, CSV, TensorBoard event files or a SQLite database."""

import csv
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from railbus.bus.recording import Recording
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Committed, Event
from railbus.schemas.hooks import Hook

from .checks import path as checked_path
from .event_file import EventFile
from .export_sqlite import write_sqlite
from .jsonable import entry_as_json
from .scalars import ROWS, numbers_of

Format = Literal["jsonl", "csv", "tensorboard", "sqlite"]
FORMATS: tuple[Format, ...] = get_args(Format)
MOST = 256  # numbers of an array that is written out; of a larger one there is a summary
PLACE = ("seq", "hook", "epoch", "step", "batch", "time", "wall_time")
EVENT_FILES = "events.out.tfevents.*"


def export(
    recording: Recording | str | Path,
    to: Format,
    path: str | Path | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write a recording in another format, with memory that does not grow with its length.

    to            | what is written
    --------------+-------------------------------------------------------------------------------
    `jsonl`       | a line per event: `seq`, `hook`, `time` (s since the run's begin), `wall_time`
                  | (Unix s), `epoch`, `step`, `cb_params`; `decision` and `acks` where an ack said
                  | more than ok; `{"gap": ..}` for a gap. Values as `jsonable` has them: arrays as
                  | lists, of more than 256 numbers a summary; NaN is the string `"NaN"`.
    `csv`         | a row per `on_train_step_end`, `on_eval_step_end`, `on_eval_end` and
                  | `on_train_epoch_end`: the place, then each single number in `cb_params`, loss
                  | first, the others by name, as the event shows them: what a callback sets at it is
                  | in the next row. The columns are known before the first row: all events are read
                  | twice. NaN is `nan`, an absent value an empty cell.
    `tensorboard` | `train/loss`, `train/<hyperparameter or own key>`, `eval/<result>` at their
                  | steps and calendar times, in an event file in the folder `path`
    `sqlite`      | tables `run`, `events`, `acks`, `stops`, `patches`, `scalars`, `gaps`, `log`

    A file is put in its place when it is complete.

    Args:
        path: the file, for TensorBoard the folder; by default `<run_id>.jsonl`, `.csv` or
            `.sqlite`, or the folder `<run_id>-tensorboard`, in the current directory.
        force: replace what is there; of TensorBoard's the event files of this run.

    Returns:
        What was written.

    Raises:
        ArgumentError: an unknown format, something is there already, or tensorboardX is not
            installed (`pip install 'railbus[tensorboard]'`).
        RecordingError: there is no recording, or it is damaged; nothing is written then.
    """
    if to not in FORMATS:
        raise ArgumentError(f"to must be one of {FORMATS}, got {to!r}")
    source = recording if isinstance(recording, Recording) else Recording(recording)
    name = _file_name(source.about.run_id)
    ending = "-tensorboard" if to == "tensorboard" else f".{to}"
    target = Path(f"{name}{ending}") if path is None else checked_path("path", path)
    if to == "tensorboard":
        _write_events(source, target, name, force)
        return target
    write = {"jsonl": _write_lines, "csv": _write_rows, "sqlite": write_sqlite}[to]
    with _complete(target, force) as part:
        write(source, part)
    return target


@contextmanager
def _complete(target: Path, force: bool) -> Iterator[Path]:
    """A file beside `target` that takes its place when the block is left in peace."""
    if target.is_dir():
        raise ArgumentError(f"'{target}' is a directory, expected the name of a file")
    if target.exists() and not force:
        raise ArgumentError(f"'{target}' is there already; force replaces it")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _write_lines(recording: Recording, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for entry in recording:
            file.write(json.dumps(entry_as_json(entry, MOST), allow_nan=False) + "\n")


def _write_rows(recording: Recording, path: Path) -> None:
    names: dict[str, None] = {}
    for _, _, row in _rows(recording):
        names.update(dict.fromkeys(row))
    columns = ["loss", *sorted(names.keys() - {"loss"})]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*PLACE, *(_column(name) for name in columns)])
        for entry, batch, row in _rows(recording):
            table.writerow([*_place(entry, batch), *(row.get(name, "") for name in columns)])


def _rows(recording: Recording) -> Iterator[tuple[Committed, Any, dict[str, float | int]]]:
    """The events that have a row, their step within the epoch, and their numbers."""
    for entry in recording:
        if isinstance(entry, Committed) and entry.event.hook in ROWS:
            cb_params = entry.event.cb_params
            yield entry, cb_params.get("cur_batch_num", ""), numbers_of(entry, cb_params)


def _place(entry: Committed, batch: Any) -> list[Any]:
    event = entry.event
    times = event.time_ns / 1e9, event.wall_ns / 1e9
    return [event.seq, event.hook.value, entry.epoch, entry.step, batch, *times]


def _column(name: str) -> str:
    """A key of the callbacks' own may have the name of a column of the place."""
    return f"cb_params.{name}" if name in PLACE else name


class _Moment:
    """When an event was, for an event file."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def now(self) -> float:
        return self._event.time_ns / 1e9

    def wall_time(self) -> float:
        return self._event.wall_ns / 1e9


def _write_events(recording: Recording, folder: Path, name: str, force: bool) -> None:
    def written() -> list[Path]:
        return [one for one in folder.glob(EVENT_FILES) if one.name.endswith(f".{name}")]

    if written() and not force:
        raise ArgumentError(f"'{folder}' holds event files of this run; force replaces them")
    for old in written():
        old.unlink()
    file = EventFile(folder, name)
    try:
        _fill(file, recording)
    except BaseException:
        file.close()
        for torn in written():
            torn.unlink()
        raise
    file.close()


def _fill(file: EventFile, recording: Recording) -> None:
    """Results of a validation stand at the step of training that it came after."""
    step = 0
    for entry, _, row in _rows(recording):
        hook = entry.event.hook
        if hook.mode == "train":
            step = entry.step
        if hook is Hook.EVAL_STEP_END or hook is Hook.TRAIN_EPOCH_END:
            continue
        file.scalars(_tags(hook, row), step, _Moment(entry.event))


def _tags(hook: Hook, row: dict[str, float | int]) -> dict[str, float]:
    if hook is Hook.TRAIN_STEP_END:
        return {f"train/{name}": float(value) for name, value in row.items()}
    return {
        f"eval/{name.removeprefix('eval_results.')}": float(value)
        for name, value in row.items()
        if name.startswith("eval_results.")
    }


def _file_name(run_id: str) -> str:
    """A run's id comes out of the recording: it must not lead anywhere else."""
    return re.sub(r"[^\w.-]", "_", run_id).lstrip(".")[:100] or "run"
