"""What travels between a run and its subscribers: events, acks, decisions, gaps."""

from collections.abc import Mapping

import msgspec

from .codec import unpack
from .errors import SnapshotError
from .hooks import Hook, Mode
from .params import Snapshot


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One occurrence of a hook; `(run_id, incarnation, seq)` names it for ever.

    `seq` starts at 0 and has no gaps in the committed log. `time_ns` counts nanoseconds since the
    run's begin and never goes back; `wall_ns` is its calendar twin (Unix time of the run's begin
    plus `time_ns`, so a clock that is set during a run does not disturb it).
    """

    run_id: str
    incarnation: int
    seq: int
    hook: Hook
    time_ns: int
    wall_ns: int
    snapshot: bytes

    @property
    def cb_params(self) -> Snapshot:
        """The snapshot, decoded anew at each access; attribute access as in a callback.

        Raises:
            SnapshotError: the bytes are none.
        """
        decoded = unpack(self.snapshot)
        if not isinstance(decoded, dict):
            raise SnapshotError(f"a snapshot is a map, got {type(decoded).__name__}")
        return Snapshot(decoded)

    def __str__(self) -> str:
        return f"{self.hook.value} #{self.seq}"


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to end the run, or only the validation (`scope="eval"`): who, at which event, why.

    One that `interrupts` is no part of the run: whoever resumes the run trains on. Any other ends
    the resumed run, too.
    """

    by: str
    at: int
    reason: str
    scope: Mode
    interrupts: bool = False


class Ack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A participant's answer to one event: ok, or with a stop, a patch, or an error.

    `patch` maps a key of `cb_params` to its new packed value, or to None where it was removed.
    `error` is the exception as text, `"ValueError: bad luck"`. The hook is part of the name of the
    answered event: an event that failed is withdrawn, and `on_exception` then takes its `seq`.
    """

    run_id: str
    seq: int
    hook: Hook
    by: str
    stop: StopRequest | None = None
    patch: Mapping[str, bytes | None] | None = None
    error: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the acks of one event amount to; all parts keep the order of the callback list."""

    run_id: str
    seq: int
    hook: Hook
    stops: tuple[StopRequest, ...] = ()
    patches: tuple[tuple[str, Mapping[str, bytes | None]], ...] = ()
    detached: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether it neither stops nor patches anything."""
        return not (self.stops or self.patches)

    def stop(self, mode: Mode) -> StopRequest | None:
        """The first request that ends a loop of `mode`; `scope="train"` ends a validation too."""
        if not self.stops:
            return None
        scopes = ("train",) if mode == "train" else ("train", "eval")
        return next((request for request in self.stops if request.scope in scopes), None)

    @property
    def lasting(self) -> StopRequest | None:
        """The first request that ends training in a resumed run, too."""
        wanted = (one for one in self.stops if one.scope == "train" and not one.interrupts)
        return next(wanted, None)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Committed events that an observer will not get: `first` to `last`, both counted in (C8).

    `reason` is `"slow"` (the observer's buffer was full) or `"retention"` (the ring had dropped
    them before the observer came).
    """

    run_id: str
    first: int
    last: int
    reason: str


class Committed(msgspec.Struct, frozen=True, gc=False):
    """One entry of a run's committed log: an event and what its acks amounted to.

    `acks` are those that said more than ok, in the order of the list. `step` and `epoch` are the
    event's `cur_step_num` and `cur_epoch_num`, 0 where it has none.
    """

    event: Event
    decision: Decision
    acks: tuple[Ack, ...] = ()
    step: int = 0
    epoch: int = 0
