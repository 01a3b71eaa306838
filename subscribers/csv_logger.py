"""`CSVLogger`: writes a run's epochs and steps as tables."""

import csv
import json
import os
from pathlib import Path
from typing import Any, TextIO

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .checks import count, flag, path as checked_path
from .closing import Closing
from .context import RunContext
from .outputs import loss_of
from .readings import MeanLoss, plain, results_of


class CSVLogger(Closing):
    """Writes a row per epoch, and on request a row every so many steps, as CSV.

    At `on_train_epoch_end` a row with `epoch`, `step` (of the run), `loss` (mean of the epoch's
    steps), the injected hyperparameters and what the validation found; the file is flushed then.
    With `every`, at `on_train_step_end`, rows of `epoch`, `step`, `loss` of that step and the
    hyperparameters in `<stem>_steps<suffix>` beside it. A value that first comes later gets its
    column then, and the rows before it an empty cell (Keras' `CSVLogger` keeps the columns of the
    first row). Arrays are written as JSON. The files are closed when the run ends, however it
    ends. An observer that misses nothing: the run waits where it is 4096
    events behind. `CSVLogger` in Keras and Lightning; MindSpore has none.

    Args:
        path: the file; missing folders are made.
        append: go on below the rows that are there; otherwise each run replaces the files.
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

    def on_train_begin(self, run_context: RunContext) -> None:
        """Open the files."""
        self._close()
        self._mean = MeanLoss()
        self._epochs = self._open(self._path)
        if self._every is not None:
            name = f"{self._path.stem}_steps{self._path.suffix}"
            self._steps = self._open(self._path.with_name(name))

    def on_train_step_end(self, run_context: RunContext) -> None:
        """A row of the step, if it is due."""
        cb_params = run_context.original_args()
        loss = loss_of(cb_params.net_outputs)
        self._mean.add(loss)
        if self._steps is not None and self._every and cb_params.cur_step_num % self._every == 0:
            self._steps.write(self._row(run_context, loss))

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """A row of the epoch; everything goes to disk."""
        assert self._epochs is not None
        results = results_of(run_context.original_args())
        self._epochs.write({**self._row(run_context, self._mean.value), **results})
        self._mean = MeanLoss()
        for table in self._tables():
            table.flush()

    def _row(self, run_context: RunContext, loss: float | None) -> dict[str, Any]:
        cb_params = run_context.original_args()
        row = {"epoch": cb_params.cur_epoch_num, "step": cb_params.cur_step_num, "loss": loss}
        return {**row, **plain(run_context.hyperparams())}

    def _open(self, path: Path) -> "_Table":
        return _Table(path, self._append, self._separator)

    def _tables(self) -> "list[_Table]":
        return [table for table in (self._epochs, self._steps) if table is not None]

    def _close(self) -> None:
        for table in self._tables():
            table.close()
        self._epochs = self._steps = None


class _Table:
    """A CSV file under its header, which grows with the rows."""

    def __init__(self, path: Path, append: bool, separator: str) -> None:
        self._path, self._separator = path, separator
        path.parent.mkdir(parents=True, exist_ok=True)
        self._columns: list[str] = []
        if not append or not path.exists():
            path.write_text("")
        self._file = self._rewritten([])

    def write(self, row: dict[str, Any]) -> None:
        """One row, under columns that are added where the file has them not."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            self._file = self._rewritten(new)
        self._writer().writerow([_cell(row.get(name)) for name in self._columns])

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rewritten(self, new: list[str]) -> TextIO:
        """The file with `new` columns and whole rows, opened behind its last row."""
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter=self._separator))
        old = rows[0] if rows else []
        self._columns = old + new
        beside = self._path.with_name(f"{self._path.name}.tmp")
        with beside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=self._separator)
            if self._columns:
                writer.writerow(self._columns)
            for row in rows[1:]:
                writer.writerow([*row, *[""] * (len(self._columns) - len(row))])
        beside.replace(self._path)
        return self._path.open("a", newline="", encoding="utf-8")

    def _writer(self) -> Any:
        return csv.writer(self._file, delimiter=self._separator)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
