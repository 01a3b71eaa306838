"""`DeviceMonitor`: watches the memory of the device and the process."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .callback import Callback
from .checks import count
from .context import RunContext
from .optional import optional

_PAGES = Path("/proc/self/statm")


class DeviceMonitor(Callback):
    """Keeps the memory of the first local device, the memory of this process and its share of CPUs.

    At `on_train_step_end`, every `every` steps counted over all epochs; each value is also an entry
    of its own name in `cb_params`, for the callbacks and events that follow. They are measured when
    the callback runs, when the device may be some steps ahead of the event. Each run starts anew, a
    resumed one goes on. A participant. `DeviceStatsMonitor` in Lightning; MindSpore and Keras have none.

    name                       | what
    ---------------------------+-------------------------------------------------------------------
    `device_memory_bytes`      | in use on the device; absent where it does not tell (CPU)
    `device_memory_peak_bytes` | the most so far; likewise
    `process_memory_bytes`     | of this process in main memory
    `cpu_share`                | CPU time per time since the value before; 1 is one core

    Args:
        every: steps from one measurement to the next.

    Attributes:
        history: lists by name, `step` (over all epochs) among them, all of the same length.

    Raises:
        ArgumentTypeError, ArgumentError: `every` is no int above 0; and at a measurement where
            there is neither `/proc` nor `psutil`.
    """

    def __init__(self, every: int = 100) -> None:
        self._every = count("every", every, 1)
        self.history: dict[str, list[Any]] = {}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        self.history = {}
        self._before = time.perf_counter(), time.process_time()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Measure, if it is due."""
        cb_params = run_context.original_args()
        if cb_params.cur_step_num % self._every:
            return
        values = {**_device(), "process_memory_bytes": _resident(), "cpu_share": self._share()}
        cb_params.update(values)
        for name, value in {"step": cb_params.cur_step_num, **values}.items():
            self.history.setdefault(name, []).append(value)

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        return {"history": {name: list(values) for name, values in self.history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.history = {name: list(values) for name, values in state["history"].items()}

    def _share(self) -> float:
        """By the clock of this process, as events may be handled later than they were."""
        now = time.perf_counter(), time.process_time()
        (wall, used), self._before = self._before, now
        return (now[1] - used) / max(now[0] - wall, 1e-9)


def _device() -> dict[str, int]:
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    names = {
        "device_memory_bytes": "bytes_in_use",
        "device_memory_peak_bytes": "peak_bytes_in_use",
    }
    return {name: int(stats[key]) for name, key in names.items() if key in stats}


def _resident() -> int:
    if _PAGES.exists():
        return int(_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return int(optional("psutil", "psutil").Process().memory_info().rss)
