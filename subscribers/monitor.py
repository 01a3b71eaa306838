"""What a callback watches: where the value comes from, and what counts as better."""

import math
import re
from typing import Any

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.params import CallbackParams
from railbus.schemas.spelling import near

from .checks import number
from .outputs import loss_of

# A metric is named by its last word that stands here: dice_loss is a loss.
LARGER = frozenset("acc accuracy auc dice f1 precision recall top topk".split())
SMALLER = frozenset("distance error loss mae mse perplexity rmse".split())


class Monitor:
    """One value of each epoch.

    `"loss"` is the training loss of the epoch's last step (MindSpore's meaning); any other name is a
    result of the epoch's validation, `eval_loss` among them.

    Raises:
        ArgumentTypeError, ArgumentError: `name` is no str, or blank.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"monitor must be a str, got {type(name).__name__} {name!r}")
        if not name.strip():
            raise ArgumentError("monitor must not be blank")
        self.name = name

    def begin(self, cb_params: CallbackParams) -> None:
        """Look at a run before its first step.

        Raises:
            ArgumentError: it will never have the value.
        """
        if self.name == "loss":
            return
        if "valid_dataset" not in cb_params:
            raise ArgumentError(
                f"monitor {self.name!r} needs a validation, and this run has none; call fit with "
                f"a valid_dataset, or monitor 'loss', the training loss"
            )
        known = cb_params.metric_names
        if self.name not in known:
            there, hint = ", ".join(map(repr, known)), near(self.name, [*known, "loss"])
            raise ArgumentError(
                f"monitor {self.name!r} is no result of this run's validations, which give {there}; "
                f"there is also 'loss', the training loss{hint and f'; {hint}'}"
            )

    def value(self, cb_params: CallbackParams) -> float | None:
        """The value in `on_train_epoch_end`; None after an epoch without a step or a validation.

        Raises:
            ArgumentError: it is no number.
        """
        if self.name == "loss":
            return loss_of(cb_params.net_outputs) if cb_params.cur_batch_num else None
        results = cb_params.get("eval_results")
        return _as_float(self.name, results[self.name]) if results else None


class Better:
    """Whether a value is better than another by more than `min_delta`.

    value  | than  | min                      | max
    -------+-------+--------------------------+-------------------------
    NaN    | any   | no                       | no
    number | None  | yes                      | yes
    number | bound | value < than - min_delta | value > than + min_delta

    Args:
        name: of the value; `mode="auto"` takes the direction from it.
        mode: `"min"`, `"max"` or `"auto"`.
        min_delta: its sign does not count (as in MindSpore and Keras).

    Raises:
        ArgumentTypeError, ArgumentError: for an unknown mode, a name whose direction is not known,
            or a `min_delta` that is no number.
    """

    def __init__(self, name: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        self._smaller = _direction(name, mode) == "min"
        self._delta = abs(number("min_delta", min_delta))

    def __call__(self, value: float, than: float | None) -> bool:
        if math.isnan(value):
            return False
        if than is None:
            return True
        return value < than - self._delta if self._smaller else value > than + self._delta


def _direction(name: str, mode: Any) -> str:
    if mode in ("min", "max"):
        return str(mode)
    if mode != "auto":
        raise ArgumentError(f"mode must be 'auto', 'min' or 'max', got {mode!r}")
    for word in reversed(re.findall(r"[a-z0-9]+", name.lower())):
        if word in LARGER | SMALLER:
            return "min" if word in SMALLER else "max"
    hint = near(name, LARGER | SMALLER)
    raise ArgumentError(
        f"mode='auto' does not know whether {name!r} should rise or fall; {hint and hint + ' else '}"
        f"pass mode='min' or mode='max'"
    )


def _as_float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"monitor {name!r} must be one number, got {type(value).__name__} {value!r}"
        ) from error
