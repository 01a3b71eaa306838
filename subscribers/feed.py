"""Which events of a stream a replay feeds, and when."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from railbus.bus.stream import Stream
from railbus.schemas.errors import ArgumentError, ArgumentTypeError, StreamGap
from railbus.schemas.events import Ack, Committed, Decision, Event, Gap
from railbus.schemas.hooks import Hook
from railbus.schemas.lifecycle import SequenceError

logger = logging.getLogger(__name__)

Until: TypeAlias = int | str | Callable[[Event], bool] | None


def contiguous(stream: Stream, skip: bool) -> Iterator[Committed]:
    """The events of a stream from its first one, each following the one before.

    Args:
        skip: go on after what is missing, and say so once for each gap.

    Raises:
        StreamGap: events are missing.
        SequenceError: one stands where it does not belong, or is of another run.
    """
    following = 0
    for item in stream:
        if isinstance(item, Gap):
            _miss(item.first, item.last, item.reason, skip)
            following = item.last + 1
            continue
        seq = item.event.seq
        if seq < following:
            raise SequenceError(f"expected event #{following}, got {item.event}")
        _check(item, stream.about.run_id)
        if seq > following:
            _miss(following, seq - 1, "they are not in the stream", skip)
        following = seq + 1
        yield item


def _check(entry: Committed, run_id: str) -> None:
    """All parts of an entry must speak of one event of this run."""
    event = entry.event
    parts: tuple[Event | Decision | Ack, ...] = (event, entry.decision, *entry.acks)
    for part in parts:
        if (part.run_id, part.seq, part.hook) != (run_id, event.seq, event.hook):
            raise SequenceError(
                f"expected {event} of run {run_id}, got {type(part).__name__} to {part.hook} "
                f"#{part.seq} of run {part.run_id}"
            )


def _miss(first: int, last: int, reason: str, skip: bool) -> None:
    missing = f"events #{first} to #{last} are missing ({reason})"
    if not skip:
        raise StreamGap(f"{missing}; gaps='skip' replays what there is")
    logger.warning("%s; the replay goes on after them", missing)


def last_of(until: Until) -> Callable[[Event], bool]:
    """Whether an event is the last one to feed.

    Raises:
        ArgumentError, ArgumentTypeError: for what names no event.
    """
    if until is None:
        return lambda event: False
    if isinstance(until, str):
        hook = hook_of(until)
        return lambda event: event.hook is hook
    if isinstance(until, int) and not isinstance(until, bool):
        return lambda event: event.seq >= until
    if callable(until):
        return until
    raise ArgumentTypeError(
        f"until must be a seq, a hook or a function of the event, got {type(until).__name__}"
    )


def hook_of(name: str) -> Hook:
    """The hook of that name.

    Raises:
        ArgumentError: there is none.
    """
    try:
        return Hook(name)
    except ValueError as error:
        known = ", ".join(hook.value for hook in Hook)
        raise ArgumentError(f"{error}; the hooks are {known}") from error


def up_to(entries: Iterable[Committed], is_last: Callable[[Event], bool]) -> Iterator[Committed]:
    """The entries up to the first that is the last, which is among them."""
    for entry in entries:
        yield entry
        if is_last(entry.event):
            return


def paced(entries: Iterable[Committed], speed: float) -> Iterator[Committed]:
    """The entries at their recorded times, `speed` times as fast; the first at once."""
    never = threading.Event()
    begin: float | None = None
    for entry in entries:
        due = entry.event.time_ns / 1e9 / speed
        if begin is None:
            begin = time.monotonic() - due
        never.wait(max(begin + due - time.monotonic(), 0.0))
        yield entry
