"""A long run of the small network, in a process of its own: does it get slower, does it grow?

`python endurance.py <epochs>` prints a JSON object; `endure` starts it and reads that.
"""

import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 938


def resident() -> int:
    """Bytes that this process holds now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def train(epochs: int) -> dict[str, Any]:
    """Microseconds per step and memory in the first and the last tenth of the run's epochs.

    `wall` is what the limit is about; `busy`, the processor's time, tells a run that gets slower
    from a machine that gets busier. Times are medians over the epochs of a tenth: a neighbour's burst of work is not the run's.
    """
    from loops import Railbus, readers
    from networks import small

    from railbus.subscribers import Callback, RunContext

    class Watch(Callback):
        def __init__(self) -> None:
            self.times: list[float] = []
            self.busy: list[float] = []
            self.memory: list[int] = []

        def on_train_epoch_end(self, run_context: RunContext) -> None:
            self.times.append(time.perf_counter())
            self.busy.append(time.process_time())
            self.memory.append(resident())

    case, watch = small(epochs, 1, STEPS), Watch()
    data = case.data()
    run = Railbus(case, data, [*readers(), watch], epochs)
    run.trainer.train(20, data, readers())  # compiles
    run.seconds()
    tenth = max((epochs - 1) // 10, 1)
    return {
        "wall": _tenths(watch.times, tenth),
        "busy": _tenths(watch.busy, tenth),
        "memory": (watch.memory[tenth], watch.memory[-1]),
        "steps": run.stats.steps,
        "seconds": run.stats.seconds,
    }


def _tenths(clock: list[float], tenth: int) -> tuple[float, float]:
    each = [1e6 * (after - before) / STEPS for before, after in itertools.pairwise(clock)]
    return statistics.median(each[:tenth]), statistics.median(each[-tenth:])


def endure(steps: int) -> dict[str, Any]:
    """The run in a fresh process."""
    command = [sys.executable, __file__, str(-(-steps // STEPS))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=580)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(train(int(sys.argv[1]))))
