"""Small recordings that were written by the real bus and the real tape, and what is in them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import settings

from railbus.bus import Recording
from railbus.bus.about import About
from railbus.bus.segment import LogLine
from railbus.bus.tape import Flush, Tape
from railbus.schemas import Decision, Event, Gap, Hook, Plan
from railbus.schemas.codec import pack
from railbus.schemas.events import Committed
from railbus.subscribers import RunContext
from tests.semantics.synthetic import Script, play

Entry: TypeAlias = Committed | Gap
Items: TypeAlias = Sequence[Committed | Gap | LogLine]

PLAN = Plan(mode="train", epochs=1, batch_num=3, valid_batch_num=1, valid_frequency=1)
ABOUT = About(run_id="run", incarnation=0, plan=PLAN, observers=("Recorder",), config={"epoch": 1})
NOTES = {"versions": {"python": "3"}, "git": {"revision": "abc"}}
LINE = LogLine(seq=4, wall_ns=7, level="WARNING", logger="railbus.bus", message="well, well")


def soaking() -> bool:
    """Whether this is `make soak`."""
    return settings.default is not None and settings.default.max_examples > 10_000


def entry(
    seq: int,
    hook: Hook = Hook.TRAIN_STEP_END,
    *,
    step: int = 0,
    epoch: int = 0,
    size: int = 8,
    time_ns: int = 0,
) -> Committed:
    """A committed event to which nobody said more than ok."""
    event = Event(
        run_id="run",
        incarnation=0,
        seq=seq,
        hook=hook,
        time_ns=time_ns,
        wall_ns=10**18 + time_ns,
        snapshot=pack({"filling": bytes([seq % 251]) * size}),
    )
    return Committed(event, Decision(run_id="run", seq=seq, hook=hook), (), step, epoch)


@cache
def sample() -> Items:
    """A run of 16 events with decisions, one line of the log and, near its end, a gap."""

    def ask(run_context: RunContext) -> None:
        run_context.original_args().k1 = [1, 2]
        run_context.request_stop("enough")

    def fail(run_context: RunContext) -> None:
        raise ValueError("bad luck")

    asking = Script("asking", {("on_train_step_end", 3): ask}, [])
    failing = Script("failing", {("on_train_step_begin", 2): fail}, [])
    failing.on_error = "detach"
    log = play([asking, failing], PLAN).log
    gap = Gap(run_id="run", first=len(log) - 4, last=len(log) - 3, reason="retention")
    assert sum(bool(one.acks) for one in log) == 2
    return [*log[:4], LINE, *log[4:-4], gap, *log[-2:]]


def write(
    folder: Path,
    items: Iterable[Committed | Gap | LogLine],
    *,
    about: About = ABOUT,
    flush: Flush = "lifecycle",
    rotate: Sequence[int] = (),
    sealed: bool = True,
) -> Path:
    """A run's directory; a file ends after each of the seqs in `rotate`."""
    tape = Tape(folder, about, flush, NOTES)
    for item in items:
        tape.write(item)
        if isinstance(item, Committed) and item.event.seq in rotate:
            tape.seal()
    if sealed:
        tape.seal()
    elif tape._writer is not None:
        tape._writer.flush()
    tape.close()
    return folder


def entries(items: Iterable[Committed | Gap | LogLine]) -> list[Entry]:
    return [item for item in items if not isinstance(item, LogLine)]


def readable(found: Iterator[Entry] | Recording) -> tuple[list[Entry], Exception | None]:
    """What can be read, and what ended that."""
    read: list[Entry] = []
    try:
        for one in found:
            read.append(one)
    except Exception as error:
        return read, error
    return read, None


def at(name: str, value: float) -> dict[str, Any]:
    """A place, as an argument of `Recording.entries`."""
    return {name: value}


def events(found: Iterable[Entry]) -> list[Event]:
    return [one.event for one in found if isinstance(one, Committed)]
