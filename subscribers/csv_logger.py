"""`CSVLogger`: writes a run's epochs and steps as tables."""

import csv
import json
import logging
import math
import os
from pathlib import Path
from typing import Any, TextIO

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .checks import count, flag, folder, path as checked_path
from .closing import Closing
from .context import RunContext
from .outputs import loss_of
from .readings import plain, results_of

logger = logging.getLogger(__name__)


class CSVLogger(Closing):
    """Writes a row per epoch, and on request a row every so many steps, as CSV.

    At `on_train_epoch_end` a row with `epoch`, `step` (of the run), `loss` (mean of the epoch's
    steps), the injected hyperparameters and what the validation found.
    With `every`, at `on_train_step_end`, rows of `epoch`, `step`, `loss` of that step and the
    hyperparameters in `<stem>_steps<suffix>` beside it. A value that first comes later gets its
    column then, and the rows before it an empty cell (Keras' `CSVLogger` keeps the columns of the
    first row). Arrays are written as JSON. A run that is resumed goes on in its files: rows from
    after its checkpoint leave them. Every row goes to the system at once. The files are closed when the run ends, however it
    ends. An observer that misses nothing: the run waits where it is 4096
    events behind. `CSVLogger` in Keras and Lightning; MindSpore has none.

    Args:
        path: the file; missing folders are made.
        append: go on below the rows that are there; otherwise each new run replaces the files. A
            resumed run drops later rows of the last run in the file, whose steps go up; where that
            has no row from before the checkpoint it may be another's, and all rows stay.
        separator: one character between cells.
        every: steps from one step row to the next, counted over all epochs; None writes none.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
        OSError: a file cannot be written.
    """

    observes, lag = True, 4096

    def __init__(
        self,
        path: str | os.PathLike[str],
        append: bool = False,
        separator: str = ",",
        every: int | None = None,
    ) -> None:
        self._path = checked_path("path", path)
        self._append = flag("append", append)
        if not isinstance(separator, str):
            raise ArgumentTypeError(f"separator must be a str, got {separator!r}")
        if len(separator) != 1 or separator in '"\r\n':
            raise ArgumentError(f"separator must be one character, no quote, got {separator!r}")
        self._separator = separator
        self._every = None if every is None else count("every", every, 1)
        self._epochs: _Table | None = None
        self._steps: _Table | None = None

    def __enter__(self) -> "CSVLogger":
        folder("path", self._path.parent)
        return self

    def on_train_begin(self, run_context: RunContext) -> None:
        """Open the files."""
        self._close()
        cb_params = run_context.original_args()
        self._epochs = self._open(self._path, "epoch", cb_params.get("resumed_epoch"))
        if self._every is not None:
            name = f"{self._path.stem}_steps{self._path.suffix}"
            path = self._path.with_name(name)
            self._steps = self._open(path, "step", cb_params.get("resumed_step"))

    def on_train_step_end(self, run_context: RunContext) -> None:
        """A row of the step, if it is due."""
        cb_params = run_context.original_args()
        if self._steps is not None and self._every and cb_params.cur_step_num % self._every == 0:
            self._steps.write(self._row(run_context, loss_of(cb_params.net_outputs)))

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """A row of the epoch."""
        assert self._epochs is not None
        cb_params = run_context.original_args()
        row = self._row(run_context, cb_params.get("epoch_loss"))
        self._epochs.write({**row, **results_of(cb_params)})

    def _row(self, run_context: RunContext, loss: float | None) -> dict[str, Any]:
        cb_params = run_context.original_args()
        row = {"epoch": cb_params.cur_epoch_num, "step": cb_params.cur_step_num, "loss": loss}
        return {**row, **plain(run_context.hyperparams())}

    def _open(self, path: Path, column: str, last: int | None) -> "_Table":
        if not path.exists() or (last is None and not self._append):
            path.write_text("")
        table = _Table(path, self._separator)
        if last is not None:
            table.go_back(column, last, doubtful=self._append)
        return table

    def _tables(self) -> "list[_Table]":
        return [table for table in (self._epochs, self._steps) if table is not None]

    def _close(self) -> None:
        for table in self._tables():
            table.close()
        self._epochs = self._steps = None


class _Table:
    """A CSV file under its header, which grows with the rows."""

    def __init__(self, path: Path, separator: str) -> None:
        self._path, self._separator = path, separator
        self._columns, rows = self._read()
        self._file = self._rewritten(rows)

    def write(self, row: dict[str, Any]) -> None:
        """One row, under columns that are added where the file has them not."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._file.close()
            self._file = self._rewritten(self._read()[1])
        self._writer().writerow([_cell(row.get(name)) for name in self._columns])

    def go_back(self, column: str, last: int, doubtful: bool) -> None:
        """Drop the last run's rows whose `column` is above `last`.

        Args:
            doubtful: whether rows may be another run's, so that it is no use to drop all.
        """
        columns, rows = self._read()
        if column not in columns:
            return
        numbers = [_number(row, columns.index(column)) for row in rows]
        keep = begin = len(rows)
        while begin and (begin == len(rows) or numbers[begin - 1] < numbers[begin]):
            begin -= 1
            keep = begin if numbers[begin] > last else keep
        if keep == begin < len(rows) and doubtful:
            logger.info("%s: no row from before the checkpoint, so all of them stay", self._path)
            return
        self._file.close()
        self._file = self._rewritten(rows[:keep])

    def close(self) -> None:
        self._file.close()

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows."""
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter=self._separator))
        return (rows[0], rows[1:]) if rows else ([], [])

    def _rewritten(self, rows: list[list[str]]) -> TextIO:
        """The file with all columns and whole rows, opened behind its last row."""
        beside = self._path.with_name(f"{self._path.name}.tmp")
        with beside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=self._separator)
            if self._columns:
                writer.writerow(self._columns)
            for row in rows:
                writer.writerow([*row, *[""] * (len(self._columns) - len(row))])
        beside.replace(self._path)
        return self._path.open("a", buffering=1, newline="", encoding="utf-8")

    def _writer(self) -> Any:
        return csv.writer(self._file, delimiter=self._separator)


def _number(row: list[str], place: int) -> float:
    """What stands there; a row that is cut off or no number counts as written last."""
    try:
        return float(row[place])
    except (IndexError, ValueError):
        return math.inf


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
