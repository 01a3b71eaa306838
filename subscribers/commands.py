"""What the commands of `railbus` do; each gives the lines to print and then its exit code."""

import itertools
import json
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

import msgspec

from railbus.bus.recording import Entry, Recording
from railbus.schemas.errors import RailbusError
from railbus.schemas.events import Ack, Committed, Gap

from .jsonable import ack_as_json, entry_as_json
from .readings import loss_of, short, some
from .scalars import results_of

Lines: TypeAlias = Generator[str, None, int]
Heard: TypeAlias = Callable[[], None]

MOST = 256  # numbers of an array that is shown whole in JSON


def show(given: Namespace, heard: Heard) -> Lines:
    """A run on one page; damage is told after what was right before it."""
    from .show import shown
    from .survey import Survey

    recording = _opened(given, heard)
    survey = Survey(recording)
    yield from shown(recording, survey, given.braille)
    if survey.damage is not None:
        raise survey.damage
    return 0


def events(given: Namespace, heard: Heard) -> Lines:
    """Its events, a line each."""
    for entry in itertools.islice(_entries(given), given.limit):
        if given.json:
            yield json.dumps(entry_as_json(entry, MOST), allow_nan=False)
        else:
            yield _line(entry)
    return 0


def diff(given: Namespace, heard: Heard) -> Lines:
    """Where two runs part; 1 where they do."""
    from .difference import TIMES_AND_NAMES, diff
    from .finding import Metered, run_at

    one, other = (Metered(run_at(path), heard=heard) for path in (given.run, given.other))
    tolerances = dict(given.tolerance)
    ignore = TIMES_AND_NAMES | set(given.ignore)
    found = diff(one, other, tolerances=tolerances, ignore=ignore, context=given.context)
    if found is None:
        yield "no difference"
        return 0
    yield from found.report().split("\n")
    return 1


def replay(given: Namespace, heard: Heard) -> Lines:
    """The recorded events, fed to callbacks: what they print, and what they answer."""
    from .named import callback_named
    from .replay import replay

    callbacks = [callback_named(text) for text in given.callback]
    echo = not given.json
    recording = _opened(given, heard)
    try:
        replayed = replay(recording, callbacks, until=given.until, echo=echo)
    except (RailbusError, OSError):
        raise
    except Exception as error:  # of an `__enter__`
        raise _raised(error) from error
    for ack in replayed.acks:
        if given.json:
            yield json.dumps(ack_as_json(ack, MOST), allow_nan=False)
        elif ack.stop or ack.patch or ack.error:
            yield f"#{ack.seq} {ack.hook.value}  {said(ack)}"
    if given.json:
        stop = None if replayed.stop is None else msgspec.structs.asdict(replayed.stop)
        yield json.dumps({"lines": replayed.lines, "stop": stop, "diverged": replayed.diverged})
    else:
        yield f"{some(len(replayed.acks), 'ack')} to {some(len(replayed.committed), 'event')}"
        if replayed.diverged is not None:
            yield f"not as recorded: {replayed.diverged}"
    if replayed.error is not None:
        raise _raised(replayed.error) from replayed.error
    return 0


def recover(given: Namespace, heard: Heard) -> Lines:
    """Close what a killed writer has left open, and cut off what is damaged."""
    from railbus.bus.recover import recover

    from .finding import run_at

    done = recover(run_at(given.run))
    for one in done:
        kept = f"{some(one.events, 'event')} kept" if one.events else "nothing was in it"
        yield f"{one.path}: {kept}, {one.reason}; the original is {one.torn.name}"
    if not done:
        yield "nothing to recover: every file was closed and is right"
    return 0


def export(given: Namespace, heard: Heard) -> Lines:
    """The recording in another format."""
    from .export import export

    yield str(export(_opened(given, heard), given.to, given.output, force=given.force))
    return 0


def verify(given: Namespace, heard: Heard) -> Lines:
    """Check all of it; 1 where it is right as far as it goes, and goes no further."""
    recording = _opened(given, heard)
    chosen = given.incarnation
    whole = True
    for number in recording.incarnations if chosen is None else (chosen,):
        report = _opened(given, heard, number).verify()
        whole = whole and report.sealed and report.ended
        state = "closed" if report.sealed else "not closed by its writer (railbus recover)"
        end = "whole" if report.ended else "without the run's end"
        yield (
            f"{report.run_id}/{number}: {some(report.events, 'event')} right, {end}, "
            f"{some(report.gaps, 'gap')}, {some(report.segments, 'file')} of {report.bytes} bytes, "
            f"{state}"
        )
    return 0 if whole else 1


def _opened(given: Namespace, heard: Heard, incarnation: int | None = None) -> Recording:
    from .finding import Metered, run_at

    number = given.incarnation if incarnation is None else incarnation
    return Metered(run_at(given.run), number, heard)


def _raised(error: BaseException) -> RailbusError:
    return RailbusError(f"a callback has raised {type(error).__name__}: {error}")


def _entries(given: Namespace) -> Iterator[Entry]:
    from .finding import run_at

    recording = Recording(run_at(given.run), given.incarnation)
    if given.follow:
        return recording.follow(given.hook)
    places = {name: getattr(given, name) for name in ("seq", "epoch", "step", "time")}
    return recording.entries(given.hook, **places)


def _line(entry: Entry) -> str:
    """An event for people: where, when, what it brought and what its acks said."""
    if isinstance(entry, Gap):
        return f"#{entry.first} to #{entry.last}: gap ({entry.reason})"
    event = entry.event
    place = f"epoch {entry.epoch} step {entry.step}"
    head = f"#{event.seq:<6} {event.time_ns / 1e9:>10.3f} s  {event.hook.value:<20}  {place:<20}"
    parts = [*_brought(entry), *(said(ack) for ack in entry.acks)]
    return f"{head}  {'; '.join(parts)}".rstrip()


def _brought(entry: Committed) -> Iterator[str]:
    hook = entry.event.hook.value
    if not hook.endswith(("_end", "_exception")) or hook == "on_eval_epoch_end":
        return
    cb_params = entry.event.cb_params
    if "status" in cb_params:
        reason = cb_params.get("stop_reason")
        yield f"{cb_params.status}" + (f": {reason}" if reason else "")
    elif entry.event.hook.is_step:
        loss = loss_of(cb_params)
        if loss is not None:
            yield f"loss {short(loss)}"
    else:
        yield from (f"{name} {short(value)}" for name, value in results_of(cb_params).items())


def said(ack: Ack) -> str:
    """An ack that said more than ok, in words."""
    parts = []
    if ack.stop is not None:
        parts.append(f"asks to stop ({ack.stop.reason})")
    if ack.patch:
        parts.append(f"sets {', '.join(ack.patch)}")
    if ack.error is not None:
        parts.append(f"raised {ack.error}")
    return f"{ack.by} {' and '.join(parts) or 'is ok'}"
