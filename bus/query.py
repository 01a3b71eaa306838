"""A request's query, read strictly: what nobody asks for is refused."""

import re

from starlette.requests import Request

from railbus.schemas.frames import Code

from .guard import Refused

NUMBER = re.compile(r"[0-9]{1,15}")


class Query:
    """The query of a request.

    Args:
        known: the names it may hold; `hook` may come several times, the others once.

    Raises:
        Refused: it holds another name, or one of them twice.
    """

    def __init__(self, request: Request, *known: str) -> None:
        items = request.query_params.multi_items()
        names = [name for name, _ in items]
        for name in names:
            if name not in known:
                wanted = ", ".join(known) or "none"
                raise _wrong(f"the query takes {wanted}, and no other parameter")
            if name != "hook" and names.count(name) > 1:
                raise _wrong(f"{name} stands twice in the query")
        self._values = dict(items)
        self.hooks = [value for name, value in items if name == "hook"] or None

    def number(self, name: str, default: int, least: int = 0, most: int = 10**15) -> int:
        """The number under `name`.

        Raises:
            Refused: it is none, or not between `least` and `most`.
        """
        text = self._values.get(name)
        if text is None:
            return default
        if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise _wrong(f"{name} is a number from {least} to {most}")
        return int(text)


def _wrong(message: str) -> Refused:
    return Refused(400, Code.BAD_REQUEST, message)
