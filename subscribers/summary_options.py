"""What `SummaryCollector` takes as dicts, checked."""

import re
from collections.abc import Mapping
from typing import Any

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .checks import flag

FLAGS = (
    "collect_metric collect_graph collect_train_lineage collect_eval_lineage collect_input_data "
    "collect_dataset_graph"
).split()


def specified(data: Any) -> dict[str, Any]:
    """`collect_specified_data`, checked; an expression that is None, for the default, becomes True.

    Raises:
        ArgumentError, ArgumentTypeError: unknown names, or values that cannot work.
    """
    wanted = _dict("collect_specified_data", data)
    for name, value in wanted.items():
        if name in FLAGS:
            flag(f"collect_specified_data[{name!r}]", value)
        elif name == "histogram_regular":
            wanted[name] = True if value is None else _expression(value)
        elif name == "collect_landscape" and value is None:
            pass
        else:
            raise ArgumentError(
                f"collect_specified_data takes {', '.join(FLAGS)} and histogram_regular, got "
                f"{name!r}: {value!r}"
            )
    return wanted


def _expression(value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentTypeError(f"histogram_regular must be a str or None, got {value!r}")
    try:
        re.compile(value)
    except re.error as error:
        raise ArgumentError(f"histogram_regular {value!r} is no expression: {error}") from error
    return value


def lineage_data(data: Any) -> dict[str, str | int | float]:
    """`custom_lineage_data`, checked.

    Raises:
        ArgumentTypeError: it is no dict, or holds something else.
    """
    custom = _dict("custom_lineage_data", data)
    for name, value in custom.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise ArgumentTypeError(
                f"custom_lineage_data takes str, int or float by name, got {name!r}: {value!r}"
            )
    return custom


def _dict(name: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name} must be a dict or None, got {value!r}")
    return dict(value or {})
