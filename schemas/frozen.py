"""Lists and dicts as they come out of a snapshot: equal to plain ones, and read-only."""

from copy import deepcopy
from typing import Any, NoReturn

from .errors import ReadOnlyParam


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise ReadOnlyParam(
        f"a {type(self).__mro__[1].__name__} in cb_params is a snapshot and cannot be changed in "
        f"place; assign a new one, for example cb_params.name = [*cb_params.name, item]"
    )


class FrozenList(list[Any]):
    """A read-only list; `list(x)` and `copy.deepcopy(x)` give one that can be changed."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(item, memo) for item in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class FrozenDict(dict[str, Any]):
    """A read-only dict; `dict(x)` and `copy.deepcopy(x)` give one that can be changed."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


for _kind, _names in (
    (FrozenList, "append extend insert pop remove clear sort reverse"),
    (FrozenList, "__setitem__ __delitem__ __iadd__ __imul__"),
    (FrozenDict, "pop popitem clear update setdefault __setitem__ __delitem__ __ior__"),
):
    for _name in _names.split():
        setattr(_kind, _name, _refuse)
