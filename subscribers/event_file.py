"""TensorBoard event files, and the callbacks that write one per run."""

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .callback import Callback
from .checks import folder
from .context import RunContext
from .optional import optional

logger = logging.getLogger(__name__)

BINS = 30  # of a histogram
NEAR_ONE = 1e12  # within it and its inverse float32 holds a histogram's sums and widths
FLUSH_SECONDS = 5.0  # of the run's time between two flushes


class Clock(Protocol):
    """When it is, for example a `RunContext`."""

    def now(self) -> float:
        """Seconds since the run's begin."""

    def wall_time(self) -> float:
        """Unix seconds."""


class EventFile:
    """One event file, written in the calling thread.

    Args:
        directory: made when needed.
        suffix: ends the file's name.
        most: bytes after which nothing more is written, said once; None is no limit.
    """

    def __init__(self, directory: Path, suffix: str, most: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        writer = optional("tensorboardX.event_file_writer", "tensorboard")
        self._summary = optional("tensorboardX.summary", "tensorboard")
        self._proto = optional("tensorboardX.proto.event_pb2", "tensorboard").Event
        self._writer = writer.EventsWriter(str(directory / "events"), f".{suffix}")
        self._most, self._written, self._full = most, 0, False
        self._flushed = 0.0

    def scalars(self, values: dict[str, float], step: int, clock: Clock) -> None:
        """Numbers by tag."""
        for tag, value in values.items():
            self._write(self._summary.scalar(tag, value), step, clock)

    def histogram(self, tag: str, values: Any, step: int, clock: Clock) -> None:
        """The finite values of an array, in `BINS` bins; nothing where there are none."""
        flat = np.asarray(values).astype(np.float32, copy=False).ravel()
        if flat.size and not np.isfinite([flat.min(), flat.max()]).all():
            flat = flat[np.isfinite(flat)]
        if flat.size:
            self._write(self._summary.histogram_raw(tag, **binned(flat)), step, clock)

    def text(self, tag: str, text: str, step: int, clock: Clock) -> None:
        """A text, which TensorBoard shows as Markdown."""
        self._write(self._summary.text(tag, text), step, clock)

    def flush(self) -> None:
        """Put onto the disk what was written."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close it."""
        self._writer.close()

    def _write(self, summary: Any, step: int, clock: Clock) -> None:
        event = self._proto(wall_time=clock.wall_time(), step=step, summary=summary)
        self._written += event.ByteSize() + 16  # a record's lengths and checksums
        if self._most is not None and self._written > self._most:
            if not self._full:
                logger.warning("max_file_size=%d is reached, no more is written", self._most)
            self._full = True
            return
        self._writer.write_event(event)
        if clock.now() - self._flushed >= FLUSH_SECONDS:
            self._flushed = clock.now()
            self.flush()


def binned(flat: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Finite values as TensorBoard's histogram has them: bins of one width, counted in one pass.

    `np.histogram` looks for each value's exact edge, which costs three times as much; here one that
    is within rounding of an edge may be counted beside it.
    """
    low, high = float(flat.min()), float(flat.max())
    span = high - low or 1.0
    if not 1 / NEAR_ONE < span < NEAR_ONE or max(-low, high) > NEAR_ONE:
        flat = flat.astype(np.float64)  # float32 would overflow
    places = ((flat - flat.dtype.type(low)) * flat.dtype.type(BINS / span)).astype(np.uint8)
    counts = np.bincount(places, minlength=BINS + 1)
    counts[BINS - 1] += counts[BINS]  # the largest value, or what was rounded up to it
    return {
        "min": low,
        "max": high,
        "num": flat.size,
        "sum": float(flat.sum(dtype=np.float64)),
        "sum_squares": float(flat.dot(flat)),
        "bucket_limits": np.linspace(low, low + span, BINS + 1).tolist(),
        "bucket_counts": [0, *counts[:BINS].tolist()],  # none below the first limit
    }


class WritesEvents(Callback):
    """What `TensorBoard` and `SummaryCollector` share: an event file from begin to end of a run.

    Attributes:
        observes: it is an observer with a bounded lag of 4096 events, so that nothing is missing.
    """

    observes = True
    lag: int | None = 4096

    def __init__(self, name: str, directory: str | Path, most: int | None = None) -> None:
        if not isinstance(directory, (str, Path)):
            raise ArgumentTypeError(f"{name} must be a path, got {directory!r}")
        if not str(directory).strip():
            raise ArgumentError(f"{name} must not be blank")
        optional("tensorboardX", "tensorboard")
        self._directory, self._most = Path(directory), most
        self._open: EventFile | None = None

    def __enter__(self) -> "WritesEvents":
        folder("directory", self._directory)
        return self

    @property
    def _file(self) -> EventFile:
        assert self._open is not None
        return self._open

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._close()
        except OSError as unwritten:
            logger.error("%s could not close its file", type(self).__name__, exc_info=unwritten)

    def on_train_begin(self, run_context: RunContext) -> None:
        """Open the run's file."""
        self._open = EventFile(self._directory, run_context.event.run_id, self._most)

    def on_train_end(self, run_context: RunContext) -> None:
        """Close it."""
        self._close()

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """Close it."""
        self._close()

    def _close(self) -> None:
        file, self._open = self._open, None
        if file is not None:
            file.close()
