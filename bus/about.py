"""What is known of a run before its first event: for recordings and for whoever watches."""

from collections.abc import Mapping
from typing import Any

import msgspec

from railbus.schemas.lifecycle import Plan

from .sequencer import Role


class About(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was set up.

    Attributes:
        incarnation: counts the processes that carried the run on.
        roles: the participants, in the order of the callback list.
        observers: names of those of the list who only watch.
        device: what it trains on, for example `"cpu x 1"`.
        config: the arguments of the run and the types of what it trains, as JSON values.
    """

    run_id: str
    incarnation: int
    plan: Plan
    roles: tuple[Role, ...] = ()
    observers: tuple[str, ...] = ()
    device: str = ""
    config: Mapping[str, Any] = {}
