"""Lists and dicts that hold a snapshot: read like the plain ones, refuse every change."""

import copy
from typing import Any, NoReturn

from .errors import ReadOnlyParam


def _refusal(fix: str) -> Any:
    def refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
        """Refused: this is a snapshot."""
        raise ReadOnlyParam(f"values in cb_params are snapshots; assign a new one: {fix}")

    return refuse


class FrozenList(list[Any]):
    """A list that cannot be changed; equal to the plain list with the same items.

    What is made from it is plain again: slices, `+`, `copy`, `copy.copy` and `copy.deepcopy`
    (with every level inside).
    """

    __slots__ = ()

    append = extend = insert = remove = pop = clear = sort = reverse = _refusal(
        "cb_params.name = [*cb_params.name, item]"
    )
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(item, memo) for item in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed; equal to the plain dict with the same items.

    What is made from it is plain again: `|`, `copy`, `copy.copy` and `copy.deepcopy` (with every
    level inside).
    """

    __slots__ = ()

    update = setdefault = pop = popitem = clear = _refusal(
        "cb_params.name = {**cb_params.name, key: value}"
    )
    __setitem__ = __delitem__ = __ior__ = update

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)
