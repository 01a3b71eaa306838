"""Names that were meant: what is spelled almost like a name that is there."""

import difflib
from collections.abc import Iterable

SHORT = {"lr": "learning_rate", "wd": "weight_decay"}


def near(name: str, known: Iterable[str]) -> str:
    """A question for an error message, with up to three names spelled alike; "" where none is."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(map(repr, found))}?" if found else ""


def twin(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` is another way to write, a plural or a slip, if any."""
    plain = {_plain(one): one for one in known}
    wanted = _plain(SHORT.get(name.lower(), name))
    found = difflib.get_close_matches(wanted, plain, n=1, cutoff=0.85)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
