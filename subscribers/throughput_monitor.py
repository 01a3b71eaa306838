"""`ThroughputMonitor`: how many steps and samples a second a run trains on."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from railbus.schemas.errors import ArgumentError

from .callback import Callback
from .checks import count, flag, positive
from .context import RunContext
from .printing import say
from .readings import short


class ThroughputMonitor(Callback):
    """Steps and samples per second over the last steps, and how much of the device's peak that is.

    At `on_train_step_end`, every `window` steps counted over all epochs: it keeps the rates of the
    last `window` steps, and prints `epoch: 1 step: 100, 812.3 steps/s, 25994 samples/s, mfu:
    48.59%` (step within the epoch). The time is the events' own, from one step's end to the next;
    validations, and what happens between epochs, are left out. Where the device runs ahead, times
    inside a block are interpolated, so a window much shorter than 50 ms says little. Each run
    starts anew, a resumed one goes on. A participant. `ThroughputMonitor` in Lightning, `SpeedMonitor` in Composer; in
    MindSpore see `TimeMonitor`; Keras has none.

    Args:
        window: steps over which is measured.
        batch_size: samples per step; None takes the length of the batch's first array.
        flops_per_step: floating-point operations of a step; None takes XLA's count of them.
        verbose: print the rates.
        peak_flops: of all devices together, per second; None leaves the MFU out.

    Attributes:
        history: lists by name: `step` (over all epochs), `steps_per_second`, `samples_per_second`
            and, with `peak_flops`, `mfu` (1 is the peak; None where XLA knows no count).

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
    """

    def __init__(
        self,
        window: int = 100,
        batch_size: int | None = None,
        flops_per_step: float | None = None,
        verbose: bool = True,
        peak_flops: float | None = None,
    ) -> None:
        self._window = count("window", window, 1)
        self._batch_size = None if batch_size is None else count("batch_size", batch_size, 1)
        self._flops = _maybe("flops_per_step", flops_per_step)
        self._verbose = flag("verbose", verbose)
        self._peak = _maybe("peak_flops", peak_flops)
        if self._flops is not None and self._peak is None:
            raise ArgumentError("flops_per_step says nothing without peak_flops; give both")
        self.history: dict[str, list[Any]] = {}
        self._clear()

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        self._clear()

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """What was between the epochs does not count."""
        self._since = run_context.now()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """One more step; the rates, if they are due."""
        cb_params, now = run_context.original_args(), run_context.now()
        self._seconds.append(now - self._since)
        self._since = now
        size = self._batch_size
        self._samples.append(_length(cb_params.train_dataset_element) if size is None else size)
        if cb_params.cur_step_num % self._window == 0:
            self._measure(cb_params)

    def state_dict(self) -> dict[str, Any]:
        """The rates so far, and what the present window holds."""
        history = {name: list(values) for name, values in self.history.items()}
        window = {"seconds": list(self._seconds), "samples": list(self._samples)}
        return {"history": history, **window}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Measure on from there; what was between the two runs does not count."""
        self.history = {name: list(values) for name, values in state["history"].items()}
        self._seconds.extend(state["seconds"])
        self._samples.extend(state["samples"])

    def _measure(self, cb_params: Any) -> None:
        seconds = sum(self._seconds)
        if seconds <= 0:
            return
        rates: dict[str, float | None] = {
            "steps_per_second": len(self._seconds) / seconds,
            "samples_per_second": sum(self._samples) / seconds,
        }
        if self._peak is not None:
            flops = self._flops or cb_params.train_network.cost.model_flops
            rates["mfu"] = flops and flops * len(self._seconds) / seconds / self._peak
        for name, value in {"step": cb_params.cur_step_num, **rates}.items():
            self.history.setdefault(name, []).append(value)
        if self._verbose:
            where = f"epoch: {cb_params.cur_epoch_num} step: {cb_params.cur_batch_num}"
            say(f"{where}, {_shown(rates)}")

    def _clear(self) -> None:
        self.history = {}
        self._seconds: deque[float] = deque(maxlen=self._window)
        self._samples: deque[int] = deque(maxlen=self._window)
        self._since = 0.0


def _shown(rates: dict[str, float | None]) -> str:
    parts = [f"{short(rates[f'{name}_per_second'])} {name}/s" for name in ("steps", "samples")]
    mfu = rates.get("mfu")
    return ", ".join(parts if mfu is None else [*parts, f"mfu: {mfu:.2%}"])


def _length(batch: Any) -> int:
    """Samples of a batch: its first array's, without reading one that is on the device."""
    layout = getattr(batch, "layout", None)
    shape = layout[0][0] if layout else np.shape(batch[0])
    return int(shape[0]) if shape else 1


def _maybe(name: str, value: Any) -> float | None:
    return None if value is None else positive(name, value)
