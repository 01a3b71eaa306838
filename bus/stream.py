"""A run's committed events with what is known of it: live, recorded, replayed or made up."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from railbus.schemas.events import Committed, Gap

from .about import About


class Stream(Protocol):
    """Whatever can be replayed and compared: a run, and what it committed, in order.

    Iterating it again begins anew.
    """

    @property
    def about(self) -> About:
        """The run as it was set up."""

    def __iter__(self) -> Iterator[Committed | Gap]: ...


class Events(msgspec.Struct, frozen=True):
    """A stream in memory, for example `Events(log.about, tuple(log.entries()))` of an `EventLog`."""

    about: About
    entries: tuple[Committed | Gap, ...]

    def __iter__(self) -> Iterator[Committed | Gap]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
