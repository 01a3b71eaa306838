"""How far the device runs ahead of the callbacks: what the user fixes, and what adapts."""

import os
from dataclasses import dataclass
from typing import Self

import jax

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.hooks import Mode
from railbus.subscribers.checks import count, flag

from .blocks import Fuse

TARGET_SECONDS = 0.05  # of a block: prints and stops feel immediate
GROWTH = 2


@dataclass(frozen=True, kw_only=True)
class RunAhead:
    """How a run is given to the device; none of it changes what callbacks see (C5).

    Args:
        block_steps: the most steps per block; None adapts to what takes about 50 ms.
        ahead: how many blocks may be on the device beyond the one whose events are published.
        memory: bytes for the states and batches that this keeps; None is a quarter of the device's
            memory. Where they do not suffice, blocks get fewer and shorter, down to lockstep.
        fuse: True for one program per block, False for a call per step, "auto" for a rule on
            device and program (`run.stats.form` says which and why). The two may differ in last bits.
        exact: False overwrites states, so that one is held in all. A stop or a change of a
            traced value then takes effect only after the steps that are on the device already;
            `cb_params` shows a value from its assignment on, as it does any other (C2).

    Raises:
        ArgumentError, ArgumentTypeError: for values that cannot work.
    """

    block_steps: int | None = None
    ahead: int = 2
    memory: int | None = None
    fuse: Fuse = "auto"
    exact: bool = True

    def __post_init__(self) -> None:
        if self.block_steps is not None:
            count("block_steps", self.block_steps, 1)
        count("ahead", self.ahead, 0)
        if self.memory is not None:
            count("memory", self.memory, 0)
        if self.fuse != "auto" and not isinstance(self.fuse, bool):
            raise ArgumentError(f"fuse must be True, False or 'auto', got {self.fuse!r}")
        flag("exact", self.exact)

    @classmethod
    def off(cls) -> Self:
        """Lockstep: the device waits for the callbacks of each step."""
        return cls(block_steps=1, ahead=0)

    @property
    def bytes(self) -> int:
        """The budget."""
        return device_memory() // 4 if self.memory is None else self.memory


def checked(run_ahead: object) -> RunAhead:
    """`run_ahead`, a `RunAhead`.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not isinstance(run_ahead, RunAhead):
        raise ArgumentTypeError(
            f"run_ahead must be a RunAhead, for example RunAhead.off(), got {run_ahead!r}"
        )
    return run_ahead


def device_memory() -> int:
    """Bytes of the default device; of the machine, where the device does not tell."""
    told = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return told or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Pace:
    """The length of the next block, and how many may be ahead.

    It begins with one step and doubles up to what takes `TARGET_SECONDS`. When a rollback wastes
    steps it begins anew, with nothing ahead; each block of full length that goes by lets one more
    run ahead. So what is in vain, the rest of a block and those ahead of it, is never much more
    than what has gone well before it: the device does about twice the work at most, whatever the
    callbacks do. A change that wastes nothing leaves the length as it is, so who changes something
    at every step gets lockstep.

    Args:
        state_bytes: of a state that a block in flight keeps.
        batch_bytes: of a step's batch.

    Attributes:
        ahead: how many blocks may be beyond the current one.
        seconds: what a step of training or evaluation takes on the device, once that is known.
    """

    def __init__(self, settings: RunAhead, state_bytes: int, batch_bytes: int) -> None:
        kept = state_bytes if settings.exact else 0
        self._room = settings.bytes
        self._most = settings.block_steps
        self._batch_bytes = max(batch_bytes, 1)
        self._ahead = min(settings.ahead, self._room // max(kept + self._batch_bytes, 1))
        self._left = max(self._room - self._ahead * kept, 0) // (self._ahead + 1)
        self._length = 1 if settings.block_steps is None else settings.block_steps
        self.ahead = self._ahead
        self._proved: dict[Mode, int] = {}
        self.seconds: dict[Mode, float] = {}

    def length(self, mode: Mode) -> int:
        """Steps of the next block."""
        return max(1, min(self._length, self._full(mode)))

    def _full(self, mode: Mode) -> int:
        """The length to grow to."""
        room = self._left // self._batch_bytes
        if self._most is not None:
            return min(self._most, room)
        if mode not in self.seconds:
            return room
        likely = int(TARGET_SECONDS / max(self.seconds[mode], 1e-9))
        return min(room, max(likely, self._proved.get(mode, 1)))

    def took(self, mode: Mode, steps: int, seconds: float, at_most: bool = False) -> None:
        """A block of so many steps was on the device for so long, or for less (`at_most`).

        A short one shows that a longer one is worth trying, whatever its steps seem to take each:
        much of that may be what any block costs.
        """
        each = seconds / steps
        proved = self._proved.get(mode, 1)
        if seconds < 0.8 * TARGET_SECONDS:
            self._proved[mode] = max(proved, steps + steps // 2 + 1)
        elif seconds > 1.5 * TARGET_SECONDS and not at_most:
            self._proved[mode] = min(proved, max(1, int(steps * TARGET_SECONDS / seconds)))
        before = self.seconds.get(mode, each)
        self.seconds[mode] = min(before, each) if at_most else (before + each) / 2

    def committed(self, mode: Mode) -> None:
        """A block has gone by without a rollback."""
        full = self._full(mode)
        if self._length >= full:
            self.ahead = min(self.ahead + 1, self._ahead)
        else:
            self._length = min(self._length * GROWTH, full)

    def rolled_back(self, wasted: int) -> None:
        """Something was changed, and so many steps on the device were in vain."""
        if wasted:
            self._length, self.ahead = 1, 0
