"""What a run is said to be in its recording: its arguments and the types of what it trains."""

import inspect
from typing import Any

import jax
import msgspec

from .arguments import Arguments
from .result import RunStats
from .runahead import RunAhead

SHOWN = ("epoch", "initial_epoch", "valid_frequency", "sinking", "valid_sinking")
THINGS = ("train_dataset", "valid_dataset")


def config_of(
    arguments: Arguments, settings: RunAhead, stats: RunStats, seed: int, **things: Any
) -> dict[str, Any]:
    """A run's arguments as JSON values; `things` are named by their types."""
    given = msgspec.structs.asdict(arguments)
    data = {name: given[name] for name in THINGS if given[name] is not None}
    return {
        "kind": arguments.kind,
        **{name: _plain(given[name]) for name in SHOWN},
        "seed": seed,
        "exact": settings.exact,
        "fused": stats.fused,
        "form": stats.form,
        **{name: _name(thing) for name, thing in {**data, **things}.items() if thing is not None},
    }


def device() -> str:
    """The devices of this process: platform, kind and number."""
    devices = jax.local_devices()
    return f"{devices[0].platform} ({devices[0].device_kind}) x {len(devices)}"


def _plain(value: Any) -> Any:
    """A number as it is, a collection of numbers as a list."""
    return value if isinstance(value, int) else list(value)


def _name(thing: Any) -> str:
    named = thing if inspect.isroutine(thing) else type(thing)
    return f"{named.__module__}.{named.__qualname__}"
