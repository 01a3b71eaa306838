"""How a run ended."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from railbus.subscribers.participant import Tally


class Status(StrEnum):
    """How a run ended, in the word that a person reads."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


class RunStats(msgspec.Struct, kw_only=True):
    """What a run did and cost, also while it is under way (`run.stats`); times are in seconds.

    Attributes:
        blocks: how many the device was given; `fused` says in which form, and `form` why.
        exact: whether stops and changes took effect at their step (`RunAhead.exact`).
        rollbacks: how often steps that the device had done ahead were taken back;
            `steps_dropped` of them never happened, `steps_again` were done a second time.
        seconds: wall time of the run.
        device_busy: the time that the device was at blocks, compilation aside. Where a block was
            done before anyone asked for it, this is an estimate from its neighbours.
        device_waited: of its idle time, that between two blocks: it waited for the host.
        host_waited: the time that the host waited for the device.
        callbacks: by name; the time of observers is spent beside the run.
    """

    events: int = 0
    steps: int = 0
    eval_steps: int = 0
    blocks: int = 0
    fused: bool = False
    form: str = ""
    exact: bool = True
    rollbacks: int = 0
    steps_dropped: int = 0
    steps_again: int = 0
    seconds: float = 0.0
    device_busy: float = 0.0
    device_waited: float = 0.0
    host_waited: float = 0.0
    callbacks: dict[str, Tally] = msgspec.field(default_factory=dict)

    @property
    def callback_seconds(self) -> float:
        """Time spent in all callbacks."""
        return sum(tally.seconds for tally in self.callbacks.values())

    @property
    def device_idle(self) -> float:
        """The time that the device was at no block."""
        return max(self.seconds - self.device_busy, 0.0)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `train`, `fit` and `run.wait()` return; `str()` of it is the sentence for a person.

    Attributes:
        reason, by, at: why, by whom and at which event (`seq`) the run was stopped, or why it
            failed; None for a run that completed.
        step, epoch: the last step and epoch that were trained, counted from 1; 0 for none.
        metrics: of the last evaluation, `eval_loss` included in `fit`.
        history: one dict per epoch: `epoch`, `loss` (mean over its steps, where the loss is all
            that a step gives or comes first), and what a validation measured.
        error: the exception of a failed run.
    """

    run_id: str
    status: Status
    reason: str | None = None
    by: str | None = None
    at: int | None = None
    step: int = 0
    epoch: int = 0
    metrics: Mapping[str, Any] = {}
    history: tuple[Mapping[str, Any], ...] = ()
    stats: RunStats
    error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<RunResult {self.run_id!r}: {self}>"

    def __str__(self) -> str:
        where = f"after step {self.step} of epoch {self.epoch}"
        if self.status is Status.COMPLETED:
            return f"completed {where}"
        who = f" by {self.by}" if self.by else ""
        return f"{self.status}{who} {where}: {self.reason}"
