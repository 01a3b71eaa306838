"""Peak memory of a run with a large state, in a process of its own: lockstep against run-ahead.

`python memory.py <megabytes> <ahead>` prints the peak in bytes; `peaks` starts it and reads that.
"""

import resource
import subprocess
import sys
from pathlib import Path

BATCH, STEPS, BLOCK_STEPS, INPUTS, CLASSES = 8, 48, 8, 784, 10
AHEAD = 2


def peak() -> int:
    """The most bytes that this process has held, on the device where that tells."""
    import jax

    told = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if told:
        return int(told)
    # Not ru_maxrss where it can be avoided: a child begins with its parent's.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def hidden(megabytes: int) -> int:
    """Width of the layer that makes the state so large."""
    return megabytes * 10**6 // 4 // (INPUTS + 1 + CLASSES)


def state_bytes(megabytes: int) -> int:
    """What the state really takes."""
    width = hidden(megabytes)
    return 4 * ((INPUTS + 1) * width + (width + 1) * CLASSES)


def buffer_bytes() -> int:
    """Batches of the blocks in flight, the one being published included."""
    return (AHEAD + 1) * BLOCK_STEPS * BATCH * 4 * (INPUTS + 1)


def train(megabytes: int, ahead: int) -> None:
    """The measured run; `ahead` 0 is lockstep."""
    import jax.numpy as jnp
    import numpy as np
    from loops import readers
    from networks import Mlp, loss_fn, optimizer

    from railbus.trainer import ArrayDataset, RunAhead, Trainer

    class Flat(Mlp):
        """Drawing random values would take more memory than training with them."""

        def init(self, rng, inputs):  # type: ignore[no-untyped-def]
            layers = zip(self.sizes, self.sizes[1:], strict=False)
            return [(jnp.full((a, b), 1e-3), jnp.zeros(b)) for a, b in layers]

    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((BATCH * STEPS, INPUTS), dtype=np.float32)
    labels = rng.integers(CLASSES, size=len(inputs)).astype(np.int32)
    settings = RunAhead(block_steps=BLOCK_STEPS, ahead=ahead, memory=4 * 2**30)
    trainer = Trainer(
        Flat((INPUTS, hidden(megabytes), CLASSES)),
        loss_fn,
        optimizer(),
        run_ahead=settings if ahead else RunAhead.off(),
    )
    trainer.train(1, ArrayDataset(inputs, labels, batch_size=BATCH), readers())


def peaks(megabytes: int, ahead: int, runs: int) -> list[int]:
    """Peak bytes of so many runs, each in a process of its own."""
    command = [sys.executable, __file__, str(megabytes), str(ahead)]
    return [
        int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
        for _ in range(runs)
    ]


if __name__ == "__main__":
    train(int(sys.argv[1]), int(sys.argv[2]))
    print(peak())
