"""Streams with something wrong: an event that is lost, comes twice or late, or at which the run fails."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from railbus.bus.about import About
from railbus.bus.stream import Stream
from railbus.schemas.codec import entry, join, pack
from railbus.schemas.entries import split
from railbus.schemas.events import Committed, Decision, Event, Gap
from railbus.schemas.hooks import Hook

from .feed import Until, hook_of

Item: TypeAlias = Committed | Gap
Fault: TypeAlias = Callable[[Iterable[Item]], Iterator[Item]]


class Faulty:
    """A stream with faults, each applied to what the ones before have left."""

    def __init__(self, stream: Stream, faults: Iterable[Fault]) -> None:
        self._stream, self._faults = stream, tuple(faults)

    @property
    def about(self) -> About:
        """The run as it was set up."""
        return self._stream.about

    def __iter__(self) -> Iterator[Item]:
        items: Iterator[Item] = iter(self._stream)
        for fault in self._faults:
            items = fault(items)
        return items


def drop(at: Until) -> Fault:
    """The event is lost: an explicit gap stands in its place (C8)."""

    def fault(items: Iterable[Item]) -> Iterator[Item]:
        for item, hit in _marked(items, at):
            if hit and isinstance(item, Committed):
                event = item.event
                yield Gap(run_id=event.run_id, first=event.seq, last=event.seq, reason="dropped")
            else:
                yield item

    return fault


def duplicate(at: Until) -> Fault:
    """The event comes twice, the second time under the next number, as all that follow."""

    def fault(items: Iterable[Item]) -> Iterator[Item]:
        shift = 0
        for item, hit in _marked(items, at):
            yield _renumbered(item, shift)
            if hit:
                shift += 1
                yield _renumbered(item, shift)

    return fault


def delay(at: Until, seconds: float) -> Fault:
    """The event and all that follow come later, by the run's own clock."""
    late = round(seconds * 1e9)

    def fault(items: Iterable[Item]) -> Iterator[Item]:
        shift = 0
        for item, hit in _marked(items, at):
            shift += late if hit else 0
            yield _later(item, shift)

    return fault


def crash(at: Until, reason: str) -> Fault:
    """The run fails at the event, which is not committed; `on_exception` takes its place and ends it."""

    def fault(items: Iterable[Item]) -> Iterator[Item]:
        before: bytes | None = None
        for item, hit in _marked(items, at):
            if hit and isinstance(item, Committed):
                yield _failure(item.event, before or item.event.snapshot, reason)
                return
            before = item.event.snapshot if isinstance(item, Committed) else before
            yield item

    return fault


def _marked(items: Iterable[Item], at: Until) -> Iterator[tuple[Item, bool]]:
    """Each item, and whether it is the first event that `at` means."""
    means = meaning(at)
    found = False
    for item in items:
        hit = not found and isinstance(item, Committed) and means(item.event)
        found = found or hit
        yield item, hit


def meaning(at: Until) -> Callable[[Event], bool]:
    """Whether an event is the one that `at` means: its `seq`, its hook, or what a function says."""
    if isinstance(at, str):
        hook = hook_of(at)
        return lambda event: event.hook is hook
    if callable(at):
        return at
    return lambda event: event.seq == at


def _renumbered(item: Item, shift: int) -> Item:
    replace = msgspec.structs.replace
    if not shift:
        return item
    if isinstance(item, Gap):
        return replace(item, first=item.first + shift, last=item.last + shift)
    seq = item.event.seq + shift
    return replace(
        item,
        event=replace(item.event, seq=seq),
        decision=replace(item.decision, seq=seq),
        acks=tuple(replace(ack, seq=seq) for ack in item.acks),
    )


def _later(item: Item, shift: int) -> Item:
    if not shift or isinstance(item, Gap):
        return item
    event = item.event
    times = {"time_ns": event.time_ns + shift, "wall_ns": event.wall_ns + shift}
    return msgspec.structs.replace(item, event=msgspec.structs.replace(event, **times))


def _failure(event: Event, snapshot: bytes, reason: str) -> Committed:
    values = {"status": "failed", "stop_reason": reason}
    entries = split(snapshot) | {key: pack(value, key) for key, value in values.items()}
    packed = join([entry(key, value) for key, value in entries.items()])
    failed = msgspec.structs.replace(event, hook=Hook.EXCEPTION, snapshot=packed)
    decision = Decision(run_id=event.run_id, seq=event.seq, hook=Hook.EXCEPTION)
    return Committed(failed, decision)
