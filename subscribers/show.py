"""`railbus show`: a recorded run on one page."""

import datetime as dt
from collections.abc import Iterator

from railbus.bus.folder import being_written
from railbus.bus.recording import Recording
from railbus.schemas.lifecycle import Plan

from .finding import was_closed
from .plot import plot
from .readings import short, some
from .survey import MOST, EpochSurvey, Survey, table
from .tallies import LOGGER, tallies_of

WARNINGS = frozenset(("WARNING", "ERROR", "CRITICAL"))
VERSIONS = ("railbus", "jax", "flax", "optax", "numpy", "python")
CONFIG = ("network", "loss_fn", "optimizer", "train_dataset", "valid_dataset", "form", "seed")


def shown(recording: Recording, survey: Survey, braille: bool) -> Iterator[str]:
    """The lines of the page.

    Args:
        braille: what reads it can show braille characters.
    """
    yield f"{recording.about.run_id}: {_ending(survey)}"
    for name, text in _facts(recording, survey):
        yield f"  {name:<14} {text}"
    yield from _callbacks(recording, survey)
    if lines := plot(survey.curve, braille):
        curve = survey.curve
        odd = f", {curve.odd} not finite" if curve.odd else ""
        yield ""
        yield f"  loss of {curve.count} steps{odd}"
        yield from (f"  {line}" for line in lines)
    if survey.epochs:
        yield ""
        yield from (f"  {line}" for line in table(list(_epochs(survey))))


def _ending(survey: Survey) -> str:
    """How the run ended, as `RunResult` says it."""
    where = f"after step {survey.step} of epoch {survey.epoch}"
    if survey.recording.about.plan.mode == "eval":
        where = f"after {survey.curve.count} steps of evaluation"
    ended = survey.ended
    if ended is None:
        at_work = being_written(survey.recording.files[-1])
        return f"{'still running' if at_work else 'broken off'}, {where}"
    status, by, reason = (ended.get(key) for key in ("status", "stop_by", "stop_reason"))
    who = f" by {by}" if by else ""
    return f"{status}{who} {where}" + (f": {reason}" if reason else "")


def _facts(recording: Recording, survey: Survey) -> Iterator[tuple[str, str]]:
    about, notes = recording.about, recording.notes
    if survey.first is not None and survey.last is not None:
        first, last = survey.first.event, survey.last.event
        began = dt.datetime.fromtimestamp(first.wall_ns / 1e9).astimezone()
        took = (last.time_ns - first.time_ns) / 1e9
        yield "began", f"{began:%Y-%m-%d %H:%M:%S %Z}, took {took:.3f} s"
    yield "recorded", _size(recording, survey)
    yield "kind", _kind(recording)
    yield "device", about.device or "unknown"
    for name in CONFIG:
        if name in about.config:
            yield name, str(about.config[name]).rpartition(".")[2] or str(about.config[name])
    versions = notes.get("versions", {})
    yield "versions", ", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions)
    if revision := notes.get("git", {}).get("revision"):
        yield "revision", revision
    yield "observers", ", ".join(about.observers) or "none"
    yield from _events(recording, survey)


def _size(recording: Recording, survey: Survey) -> str:
    files = recording.files
    size = sum(path.stat().st_size for path in files)
    text = f"{survey.events} events, {size / 1024:.1f} KiB in {some(len(files), 'file')}"
    if len(recording.incarnations) > 1:
        text += f", incarnation {recording.incarnation} of {recording.incarnations}"
    return text + ("" if was_closed(recording) else ", its last file was not closed")


def _kind(recording: Recording) -> str:
    plan = recording.about.plan
    kind = str(recording.about.config.get("kind", plan.mode))
    if plan.mode == "eval":
        return kind
    steps = "" if plan.batch_num is None else f" of {some(plan.batch_num, 'step')}"
    begin = f", from epoch {plan.initial_epoch + 1}" if plan.initial_epoch else ""
    resumed = ", resumed" if plan.resumed is not None else ""
    return f"{kind}, {some(plan.epochs, 'epoch')}{steps}{begin}{_valid(plan)}{resumed}"


def _valid(plan: Plan) -> str:
    """When it is validated."""
    when = plan.valid_frequency
    if when is None:
        return ""
    if isinstance(when, int):
        return ", validated every " + ("epoch" if when == 1 else f"{when} epochs")
    return f", validated after epochs {', '.join(map(str, when))}"


def _events(recording: Recording, survey: Survey) -> Iterator[tuple[str, str]]:
    for stop in survey.stops if survey.stop_count > 1 or survey.ended is None else ():
        scope = " (validation only)" if stop.scope == "eval" else ""
        yield "stop", f"#{stop.at} {stop.by}{scope}: {stop.reason}"
    if survey.stop_count > len(survey.stops):
        yield "stop", f"and {survey.stop_count - len(survey.stops)} more"
    for name, seq in survey.detached:
        yield "detached", f"#{seq} {name}"
    for gap in survey.gaps:
        yield "gap", f"#{gap.first} to #{gap.last}: {gap.reason}"
    if survey.gap_count > len(survey.gaps):
        yield "gap", f"and {survey.gap_count - len(survey.gaps)} more"
    if survey.damage is not None:
        return
    warnings = 0
    for line in recording.log():
        if line.level in WARNINGS and line.logger != LOGGER:
            warnings += 1
            if warnings <= MOST:
                yield line.level.lower(), f"#{line.seq} {line.message}"
    if warnings > MOST:
        yield "warning", f"and {warnings - MOST} more"


def _callbacks(recording: Recording, survey: Survey) -> Iterator[str]:
    """The participants in their order; what they and the observers cost, where it is known."""
    names = [*(role.name for role in recording.about.roles), *recording.about.observers]
    whole = survey.damage is None and was_closed(recording)
    tallies = tallies_of(recording.log()) if whole else {}
    if not names:
        return
    yield ""
    rows = [["", "seconds", "events", "errors", "stops"]]
    for name in names:
        tally = tallies.get(name)
        row = ["?"] * 4
        if tally is not None:
            row = [f"{tally.seconds:.3f}", *map(str, (tally.events, tally.errors, tally.stops))]
        rows.append([name, *row])
    width = max(len("callbacks"), *map(len, names))
    rows = [[f"{row[0] or 'callbacks':<{width}}", *row[1:]] for row in rows]
    yield from (f"  {line}" for line in table(rows))


def _epochs(survey: Survey) -> Iterator[list[str]]:
    names = list(dict.fromkeys(name for epoch in survey.epochs for name in epoch.results))
    head = ["epoch", "steps", "loss", *names, "seconds", "ms/step", "longest pause"]
    yield head
    for place, epoch in enumerate(survey.epochs):
        if survey.hidden and place == MOST:
            yield ["...", *[""] * (len(head) - 1)]
        yield [
            str(epoch.number or "eval"),
            str(epoch.steps),
            _number(epoch.loss.value),
            *(_number(epoch.results.get(name)) for name in names),
            *_times(epoch),
        ]


def _times(epoch: EpochSurvey) -> list[str]:
    each = f"{epoch.stepping / epoch.steps * 1e3:.3f}" if epoch.steps else ""
    return [f"{epoch.seconds:.3f}", each, f"{epoch.pause:.3f} s before #{epoch.pause_at}"]


def _number(value: float | None) -> str:
    return "" if value is None else short(value)
