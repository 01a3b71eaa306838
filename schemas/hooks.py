"""The thirteen points of a run at which callbacks are called."""

from enum import StrEnum
from typing import Literal

Mode = Literal["train", "eval"]


class Hook(StrEnum):
    """A point of a run; the value is the name of the callback method (MindSpore's names)."""

    TRAIN_BEGIN = "on_train_begin"
    TRAIN_EPOCH_BEGIN = "on_train_epoch_begin"
    TRAIN_STEP_BEGIN = "on_train_step_begin"
    TRAIN_STEP_END = "on_train_step_end"
    TRAIN_EPOCH_END = "on_train_epoch_end"
    TRAIN_END = "on_train_end"
    EVAL_BEGIN = "on_eval_begin"
    EVAL_EPOCH_BEGIN = "on_eval_epoch_begin"
    EVAL_STEP_BEGIN = "on_eval_step_begin"
    EVAL_STEP_END = "on_eval_step_end"
    EVAL_EPOCH_END = "on_eval_epoch_end"
    EVAL_END = "on_eval_end"
    EXCEPTION = "on_exception"

    @property
    def mode(self) -> Mode | None:
        """`"train"`, `"eval"`, or None for `on_exception`, which belongs to both."""
        if self is Hook.EXCEPTION:
            return None
        return "train" if self.startswith("on_train") else "eval"

    @property
    def alias(self) -> str | None:
        """MindSpore's older name (`step_end`), which serves training and evaluation alike."""
        if self is Hook.EXCEPTION:
            return None
        return self.removeprefix("on_train_").removeprefix("on_eval_")

    @property
    def is_step(self) -> bool:
        """Whether it fires once a batch."""
        return self in STEPS


STEPS = frozenset(hook for hook in Hook if "_step_" in hook)
LEGACY = tuple(dict.fromkeys(hook.alias for hook in Hook if hook.alias is not None))
