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
    """What a run did and cost; `seconds` is its wall time, `callbacks` is by participant."""

    events: int = 0
    steps: int = 0
    eval_steps: int = 0
    blocks: int = 0
    seconds: float = 0.0
    callbacks: dict[str, Tally] = msgspec.field(default_factory=dict)

    @property
    def callback_seconds(self) -> float:
        """Time spent in all callbacks."""
        return sum(tally.seconds for tally in self.callbacks.values())


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

    def __str__(self) -> str:
        where = f"after step {self.step} of epoch {self.epoch}"
        if self.status is Status.COMPLETED:
            return f"completed {where}"
        who = f" by {self.by}" if self.by else ""
        return f"{self.status}{who} {where}: {self.reason}"
