"""`Profiler`: traces some steps of a run for TensorBoard, XProf or Perfetto."""

import logging
import os

from railbus.schemas.errors import ArgumentError, StateGone

from .checks import count, path as checked_path
from .closing import Closing
from .context import RunContext

logger = logging.getLogger(__name__)


class Profiler(Closing):
    """Records what host and device do in the steps from `start_step` to before `stop_step`.

    The device runs ahead of the callbacks, so at `on_train_step_begin` of the first step it may
    have been through the whole range already. Therefore the trace begins there with `train_network`
    assigned to itself: what the device has done beyond that point is taken back and done again,
    within the trace, with the same result bit for bit. It ends at `on_train_step_end` of the last
    step, or with the run, however it ends. So all computation of these steps is in the trace, and
    behind them some that the device had been given ahead; after the take-back blocks begin short
    and grow again. With `RunAhead.off()` the trace holds these steps and nothing else, one by one.
    With `RunAhead(exact=False)` nothing can be taken back: the trace begins some blocks late, which
    `RunAhead.off()` mends too. Steps count over all epochs; what lies between two of them, a
    validation for example, is in the trace. A participant. `Profiler` in MindSpore, the
    `profile_batch` of Keras' `TensorBoard`, `Trainer(profiler=...)` in Lightning.

    Args:
        directory: where JAX writes the trace, under `plugins/profile`.
        start_step: the first step, from 1.
        stop_step: the first one that is left out, above `start_step`.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
        RuntimeError: another trace is being recorded in this process.
    """

    def __init__(self, directory: str | os.PathLike[str], start_step: int, stop_step: int) -> None:
        self._directory = checked_path("directory", directory)
        self._start = count("start_step", start_step, 1)
        self._stop = count("stop_step", stop_step, 1)
        if self._stop <= self._start:
            raise ArgumentError(f"stop_step must be above start_step {start_step}, got {stop_step}")
        self._tracing = False

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Begin, when it is time."""
        step = run_context.original_args().cur_step_num
        if not self._tracing and self._start <= step < self._stop:
            self._begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """End, when it is time."""
        if run_context.original_args().cur_step_num >= self._stop - 1:
            self._close()

    def _begin(self, run_context: RunContext) -> None:
        import jax

        cb_params = run_context.original_args()
        try:
            cb_params.train_network = cb_params.train_network
        except StateGone:
            logger.warning("the trace begins late, with exact=False steps cannot be done again")
        jax.numpy.zeros(()).block_until_ready()  # behind what the device is at
        jax.profiler.start_trace(self._directory)
        self._tracing = True

    def _close(self) -> None:
        if self._tracing:
            import jax

            self._tracing = False
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]  # it has no types
