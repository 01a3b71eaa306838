"""The thirteen points of a run at which callbacks are called."""

from enum import StrEnum
from typing import Literal

Mode = Literal["train", "eval"]


class Hook(StrEnum):
    """A point of a run; the value is the name of the callback method (MindSpore's names).

    Attributes:
        mode: `"train"`, `"eval"`, or None for `on_exception`, which belongs to both.
        alias: MindSpore's older name (`step_end`), which serves training and evaluation alike.
        is_step: whether it fires once a batch.
    """

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

    def __init__(self, name: str) -> None:
        ends = name == "on_exception"
        self.mode: Mode | None = None if ends else "train" if "_train_" in name else "eval"
        self.alias = None if ends else name.removeprefix("on_train_").removeprefix("on_eval_")
        self.is_step = "_step_" in name

    # Enum's own is a Python function, and hooks are looked up several times an event.
    __hash__ = str.__hash__


STEPS = frozenset(hook for hook in Hook if hook.is_step)
LEGACY = tuple(dict.fromkeys(hook.alias for hook in Hook if hook.alias is not None))
