"""The two forms of a trainer's call: one waits for the run's end, one lets it go on beside."""

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from railbus.bus.bus import EventBus

from .arguments import Arguments
from .result import RunResult
from .run import Execution, Run, carry_out, start


class _Trainer(Protocol):
    bus: EventBus

    def _prepare(self, arguments: Arguments) -> Execution: ...


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=_Trainer)


def waiting(
    ask: Callable[Concatenate[T, P], Arguments], answer: Callable[[RunResult], R]
) -> Callable[Concatenate[T, P], R]:
    """The method that does what `ask` asks for, and gives what `answer` makes of the result."""

    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        asked = ask(self, *args, **kwargs)
        return answer(carry_out(self.bus, self._prepare(asked), asked.serve))

    returns = inspect.signature(answer).return_annotation
    _describe(call, ask, "", ask.__doc__, returns)
    return call


def beside(
    ask: Callable[Concatenate[T, P], Arguments],
) -> Callable[Concatenate[T, P], AbstractAsyncContextManager[Run]]:
    """The method that does the same beside its caller, and takes the same arguments."""

    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[Run]:
        asked = ask(self, *args, **kwargs)
        return start(self.bus, self._prepare(asked), asked.serve)

    name = ask.__name__.lstrip("_")
    doc = f"`{name}` beside the caller: `async with trainer.start_{name}(...) as run`."
    _describe(call, ask, "start_", doc, AbstractAsyncContextManager[Run])
    return call


def result_of(result: RunResult) -> RunResult:
    """All of it."""
    return result


def metrics_of(result: RunResult) -> dict[str, Any]:
    """The metrics."""
    return dict(result.metrics)


def _describe(
    call: Any, ask: Callable[..., Arguments], prefix: str, doc: str | None, returns: Any
) -> None:
    """What `help` shows of it."""
    ask.__qualname__ = ask.__qualname__.replace("._", ".")  # which Python's own errors name
    call.__name__ = f"{prefix}{ask.__name__.lstrip('_')}"
    call.__qualname__ = f"{ask.__qualname__.rpartition('.')[0]}.{call.__name__}"
    call.__module__, call.__doc__ = ask.__module__, doc
    call.__signature__ = inspect.signature(ask).replace(return_annotation=returns)
