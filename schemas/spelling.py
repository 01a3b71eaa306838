"""Names that were meant: what is spelled almost like a name that is there."""

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """A question for an error message, with up to three names spelled alike; "" where none is."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(map(repr, found))}?" if found else ""
