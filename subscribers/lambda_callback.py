"""`LambdaCallback`: hooks as plain functions."""

from collections.abc import Callable
from typing import Any

from railbus.schemas.errors import ArgumentTypeError
from railbus.schemas.hooks import Hook

from .callback import Callback
from .checks import function

HOOKS = frozenset(hook.value for hook in Hook if hook is not Hook.EXCEPTION)


class LambdaCallback(Callback):
    """Calls plain functions, `def` or `async def`, at the hooks they are given for; a participant.

    `LambdaCallback(on_train_epoch_end=lambda run_context: ...)`, with any of the twelve hooks of
    training and evaluation as keywords. In `fit` those of evaluation are called in the validation
    (MindSpore's `LambdaCallback` is left out there, and takes what cannot be called). Called the
    same in Keras and Lightning.

    Args:
        hooks: functions of one argument, the run context; None is as if it were not given.

    Raises:
        ArgumentTypeError: for another keyword, or something that cannot be called.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        for name, given in hooks.items():
            if name not in HOOKS:
                raise ArgumentTypeError(
                    f"{name!r} is no hook, there are {', '.join(sorted(HOOKS))}"
                )
            if given is not None:
                setattr(self, name, function(name, given))
