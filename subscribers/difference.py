"""`diff`: where two streams part; `acks_of`: every ack of one."""

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from railbus.bus.sequencer import Sequencer
from railbus.bus.stream import Stream
from railbus.schemas.codec import VALUE_LIMITS, unpack
from railbus.schemas.entries import split
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Ack, Committed, Event, Gap, StopRequest
from railbus.schemas.hooks import Hook

from .checks import count
from .unlike import NOTHING, unlike

Item: TypeAlias = Committed | Gap
TIMES_AND_NAMES = frozenset({"time_ns", "wall_ns", "run_id", "incarnation"})


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first point where two streams are not the same.

    Attributes:
        seq: of the event on the left; on the right where the left has ended.
        hook: of that event; "" for a gap.
        field: what differs: of the event (`"hook"`, `"cb_params.net_outputs[0]"`), of an ack
            (`"stop.reason"`, `"patch.learning_rate"`, `"error"`, `"ack"`: whether there is one), or
            of the decision (`"decision.stops"`).
        by: whose ack it is; None where it is none.
        left, right: what was expected, and what was got.
        context: the items around it on both sides, itself among them.
    """

    seq: int
    hook: str
    field: str
    by: str | None
    left: Any
    right: Any
    context: tuple[tuple[Item, ...], tuple[Item, ...]] = ((), ())

    def __str__(self) -> str:
        where = " ".join(part for part in (f"#{self.seq}", self.hook, self.by, self.field) if part)
        return f"{where}: expected {self.left!r}, got {self.right!r}"

    def report(self) -> str:
        """The same with the events around it, for a terminal."""
        lines = [str(self)]
        for title, items in zip(("expected", "got"), self.context, strict=True):
            lines += [f"  {title}:", *(f"    {_line(item)}" for item in items)]
        return "\n".join(lines)


def acks_of(stream: Stream) -> Iterator[Ack]:
    """Every ack of a stream in order, plain oks included, which it does not hold by themselves."""
    asked = _Asked(stream)
    for item in stream:
        if isinstance(item, Gap):
            continue
        event, said = item.event, {ack.by: ack for ack in item.acks}
        for name in asked.at(item):
            ok = Ack(run_id=event.run_id, seq=event.seq, hook=event.hook, by=name)
            yield said.get(name, ok)


def diff(
    a: Stream,
    b: Stream,
    *,
    tolerances: Mapping[str, float] | None = None,
    ignore: Collection[str] = TIMES_AND_NAMES,
    context: int = 3,
) -> Difference | None:
    """The first point where two streams part: events, acks, decisions; None if they nowhere do.

    Values are compared by bits (see `unlike`). Of participants that only one of them lists,
    acks that say no more than ok are left out.

    Args:
        a: what is expected, for example a recording.
        b: what was got, for example a `Replayed` of it.
        tolerances: by key of `cb_params`, how far numbers may be apart, in snapshots and patches.
        ignore: fields of events and keys of `cb_params` that do not count.
        context: how many items before and after it are shown.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
        SnapshotError: a snapshot is none.
    """
    if isinstance(ignore, str):
        raise ArgumentError(f"ignore must be a collection of names, got the str {ignore!r}")
    for key, tolerance in (tolerances or {}).items():
        if not tolerance >= 0:
            raise ArgumentError(f"the tolerance of {key!r} must be at least 0, got {tolerance!r}")
    before: deque[tuple[Item, Item]] = deque(maxlen=count("context", context, 0))
    sides = _Sides(a, b, tolerances or {}, frozenset(ignore))
    lefts, rights = iter(a), iter(b)
    while True:
        left, right = next(lefts, None), next(rights, None)
        if left is None and right is None:
            return None
        found = next(sides.faults(left, right), None)
        if found is not None:
            break
        if left is not None and right is not None:
            before.append((left, right))
    seq, hook = _place(right if left is None else left)
    around = tuple(
        (
            *(pair[side] for pair in before),
            *(() if here is None else (here,)),
            *itertools.islice(rest, context),
        )
        for side, here, rest in ((0, left, lefts), (1, right, rights))
    )
    return Difference(seq=seq, hook=hook, context=(around[0], around[1]), **found._asdict())


class _Fault(NamedTuple):
    field: str
    by: str | None
    left: Any
    right: Any


_OK = Ack(run_id="", seq=0, hook=Hook.TRAIN_BEGIN, by="")


class _Asked:
    """Which participants of a stream acked each of its events."""

    def __init__(self, stream: Stream) -> None:
        about = stream.about
        self.names = [role.name for role in about.roles]
        self._places = {name: k for k, name in enumerate(self.names)}
        self._sequencer = Sequencer(about.run_id, about.roles)

    def at(self, entry: Committed) -> list[str]:
        """Those of the next event, in order."""
        wanting = self._sequencer.wanting(entry.event.hook, entry.step, entry.epoch)
        asked = [self.names[k] for k in wanting]
        if not entry.decision.detached:
            return asked
        said = {ack.by for ack in entry.acks}
        gone = [name for name in entry.decision.detached if name in self._places]
        for name in gone:
            self._sequencer.detach(self._places[name])
        # Who is detached without having said anything has missed its deadline.
        return [name for name in asked if name in said or name not in gone]


class _Sides:
    """Two streams side by side."""

    def __init__(
        self, a: Stream, b: Stream, tolerances: Mapping[str, float], ignore: frozenset[str]
    ) -> None:
        self._tolerances, self._ignore = tolerances, ignore
        self._asked = _Asked(a), _Asked(b)
        self._both = set(self._asked[0].names) & set(self._asked[1].names)
        self._same_roles = a.about.roles == b.about.roles

    def faults(self, left: Item | None, right: Item | None) -> Iterator[_Fault]:
        """What differs, the nearest to the cause first."""
        if isinstance(left, Committed) and isinstance(right, Committed):
            yield from self._events(left.event, right.event)
            yield from self._asks(left, right)
            yield from self._acks(left, right)
            yield from self._decisions(left, right)
        elif self._counted(left) != self._counted(right):
            yield _Fault("event", None, _line(left), _line(right))

    def _counted(self, item: Item | None) -> Any:
        """What counts of an entry that may be a gap."""
        if isinstance(item, Gap) and "run_id" in self._ignore:
            return item.first, item.last, item.reason
        return item

    def _events(self, left: Event, right: Event) -> Iterator[_Fault]:
        for name in ("seq", "hook", "run_id", "incarnation", "time_ns", "wall_ns"):
            pair = getattr(left, name), getattr(right, name)
            if pair[0] != pair[1] and name not in self._ignore:
                yield _Fault(name, None, *map(_plain, pair))
        if left.snapshot != right.snapshot:
            yield from self._values("cb_params", split(left.snapshot), split(right.snapshot))

    def _values(
        self,
        where: str,
        left: Mapping[str, bytes | None],
        right: Mapping[str, bytes | None],
        by: str | None = None,
    ) -> Iterator[_Fault]:
        for key in {**left, **right}:
            if key in self._ignore:
                continue
            if (key in left) != (key in right):
                pair = [_shown(side[key]) if key in side else NOTHING for side in (left, right)]
                yield _Fault(f"{where}.{key}", by, *pair)
            found = unlike(left.get(key), right.get(key), self._tolerances.get(key))
            if found is not None:
                yield _Fault(f"{where}.{key}{found.path}", by, found.left, found.right)

    def _asks(self, left: Committed, right: Committed) -> Iterator[_Fault]:
        if self._same_roles and left.decision.detached == right.decision.detached:
            return
        asked = self._asked[0].at(left), self._asked[1].at(right)
        for name in dict.fromkeys([*asked[0], *asked[1]]):
            pair = ["ok" if name in side else NOTHING for side in asked]
            if name in self._both and pair[0] != pair[1]:
                yield _Fault("ack", name, *pair)

    def _acks(self, left: Committed, right: Committed) -> Iterator[_Fault]:
        said = {ack.by: ack for ack in left.acks}, {ack.by: ack for ack in right.acks}
        for name in {**said[0], **said[1]}:
            one, other = said[0].get(name), said[1].get(name)
            one, other = one or _OK, other or _OK
            yield from self._stops("stop", one.stop, other.stop, name)
            yield from self._values("patch", one.patch or {}, other.patch or {}, name)
            if one.error != other.error:
                yield _Fault("error", name, one.error, other.error)

    def _stops(
        self, field: str, left: StopRequest | None, right: StopRequest | None, by: str | None
    ) -> Iterator[_Fault]:
        if left is None or right is None:
            if left is not right:
                reasons = [None if stop is None else stop.reason for stop in (left, right)]
                yield _Fault(field, by, *reasons)
            return
        for name in ("by", "reason", "scope", "at"):
            pair = getattr(left, name), getattr(right, name)
            if pair[0] != pair[1]:
                yield _Fault(f"{field}.{name}", by, *pair)

    def _decisions(self, left: Committed, right: Committed) -> Iterator[_Fault]:
        one, other = left.decision, right.decision
        for place, (mine, yours) in enumerate(itertools.zip_longest(one.stops, other.stops)):
            yield from self._stops(f"decision.stops[{place}]", mine, yours, None)
        if one.detached != other.detached:
            yield _Fault("decision.detached", None, one.detached, other.detached)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Hook) else value


def _place(item: Item | None) -> tuple[int, str]:
    if isinstance(item, Committed):
        return item.event.seq, item.event.hook.value
    return (item.first if isinstance(item, Gap) else 0), ""


def _line(item: Item | None) -> str:
    if item is None:
        return "the end of the stream"
    if isinstance(item, Gap):
        return f"gap #{item.first} to #{item.last} ({item.reason})"
    said = [f"{ack.by} {_said(ack)}" for ack in item.acks]
    return "; ".join([str(item.event), *said])


def _said(ack: Ack) -> str:
    if ack.error is not None:
        return f"error {ack.error}"
    if ack.stop is not None:
        return f"stop: {ack.stop.reason}"
    return f"patch {', '.join(ack.patch or {})}"


def _shown(packed: bytes | None) -> Any:
    return "removed" if packed is None else unpack(packed, VALUE_LIMITS)
