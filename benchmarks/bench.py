"""What run-ahead costs: one table, each row as a ratio to the limit, and cost as the work grows.

The limit is Railbus's own compiled block driven with no events at all. Candidates are measured
in turns and compared within each round, since the machine may be shared. On a CPU compare the
rows of one table with one another, not with another machine's.
"""

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import events
import flax
import jax
import numpy as np
import optax
import peers
import plot
from networks import SMALL, cases
from report import HEADS, Row, markdown, text
from rows import Network, bus_row, endurance_rows, memory_row, recording_rows, replay_row
from timing import Figure

HERE = Path(__file__).parent
RESULTS, PLOT = HERE / "RESULTS.md", HERE / "growth.png"
ROUNDS, ROUNDS_QUICK = 7, 1
Growth = Mapping[tuple[int, int], Figure]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean little")
    parser.add_argument("--peers", action="store_true", help="Keras 3 on JAX too")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md and the plot")
    parser.add_argument("--rounds", type=int, help=f"instead of {ROUNDS}")
    parser.add_argument("--no-long", action="store_true", help="leave out the long run")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--quick measures too little for RESULTS.md")
    return arguments


def heading(rounds: int, with_peers: bool) -> str:
    """Device, versions and how it was measured."""
    versions = {"Python": platform.python_version(), "jax": jax.__version__}
    versions |= {"flax": flax.__version__, "optax": optax.__version__, "numpy": np.__version__}
    if with_peers:
        versions["keras"] = peers.keras().__version__
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{jax.devices()[0].device_kind}, {processor()}, {cores} cores, load {os.getloadavg()[0]:.1f} "
        f"at the start; {named}; batch 64; medians "
        f"of {rounds} interleaved rounds, ratios paired within each round"
    )


def processor() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()


def rows(arguments: argparse.Namespace, rounds: int) -> Iterator[Row]:
    """The whole table; says on stderr what it is at."""
    for case in cases(arguments.quick):
        say(case.name)
        yield from Network(case, arguments.peers).rows(rounds)
    say("bus alone")
    yield bus_row(arguments.quick)
    say("recording")
    small = next(case for case in cases(arguments.quick) if case.name == SMALL)
    yield from recording_rows(small, arguments.quick)
    yield replay_row(arguments.quick)
    say("memory")
    yield memory_row(arguments.quick)
    if not arguments.no_long:
        say("long run")
        yield from endurance_rows(arguments.quick)


def say(what: str) -> None:
    """Progress, which is no part of the table."""
    print(f"[{time.strftime('%H:%M:%S')}] {what} ...", file=sys.stderr, flush=True)


def growth_table(found: Growth) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Thousands of events per second, a line per size: rows and heads."""
    heads = ("snapshot", *(f"{count} callbacks" for count in events.CALLBACKS))
    lines = [
        (plot.size_text(size), *(_thousands(found[count, size]) for count in events.CALLBACKS))
        for size in events.SIZES
    ]
    return lines, heads


def _thousands(figure: Figure) -> str:
    median, low, high = (one / 1000 for one in figure[:3])
    return f"{median:.1f} ({low:.1f}..{high:.1f})"


def write(head: str, table: list[Row], found: Growth) -> None:
    """RESULTS.md and the plot, all of it measured just now; without matplotlib no plot."""
    today = datetime.date.today().isoformat()
    lines, heads = growth_table(found)
    parts = [
        "# Results",
        f"Written by `make bench` with `--write` on {today}. {head}.",
        "Every figure is a ratio to *the limit*, Railbus's compiled block driven with no events at "
        "all, unless the row says otherwise.",
        markdown([row.cells() for row in table], HEADS),
        "## Cost as the work grows",
        "Thousands of committed events per second, bus alone, median (min..max): every callback is "
        "called at both events of each step, and each step changes the snapshot.",
        markdown(lines, heads),
    ]
    try:
        plot.draw(found, PLOT)
        parts.append(f"![Events per second over callbacks, by snapshot size]({PLOT.name})")
    except ImportError as error:
        print(error)
    RESULTS.write_text("\n\n".join(parts) + "\n")


def main() -> None:
    """Print the tables, and write them where asked to."""
    arguments = parsed()
    rounds = arguments.rounds or (ROUNDS_QUICK if arguments.quick else ROUNDS)
    try:
        head = heading(rounds, arguments.peers)
    except ImportError as error:
        sys.exit(str(error))
    began = time.monotonic()
    table = list(rows(arguments, rounds))
    print(head, "", text([row.cells() for row in table], HEADS), sep="\n")
    if arguments.quick:
        print("one short round of each: these verdicts mean nothing")
    say("cost as the work grows")
    found = events.growth(arguments.quick)
    print("\nthousands of events a second, bus alone, by callbacks and snapshot")
    print(text(*growth_table(found)))
    if arguments.write:
        write(head, table, found)
    say(f"done after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
