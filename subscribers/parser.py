"""The arguments of `railbus`, by command, with their help."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from railbus.schemas.hooks import Hook

from . import commands

EPILOG = """\
RUN is a run's directory, its folder of events, one file, or a directory that holds one run.
exit codes: 0 done; 1 a difference, or a recording without its end; 2 an error; 130 interrupted.
`railbus COMMAND --help` has examples."""


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"railbus: error: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """All commands; what they give has the function of `commands` as `act`."""
    made = _Parser(
        prog="railbus",
        description="Look at recorded runs: show, search, compare, replay, export, repair.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added = made.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _show(added)
    _events(added)
    _diff(added)
    _replay(added)
    _export(added)
    _verify(added)
    _recover(added)
    return made


def _show(added: Any) -> None:
    command = _command(
        added,
        *("show", commands.show, "a run on one page: how it ended, costs, losses, epochs"),
        *("railbus show runs/digits", "railbus show runs/fit-1/events/000-00000000.mcap"),
    )
    _incarnation(command)


def _events(added: Any) -> None:
    command = _command(
        added,
        *("events", commands.events, "its events, a line each"),
        *(
            "railbus events runs/fit-1 --hook on_train_epoch_end",
            "railbus events runs/fit-1 --epoch 3 --limit 20",
            "railbus events runs/fit-1 --follow --json | jq .cb_params.net_outputs",
        ),
    )
    hooks = [hook.value for hook in Hook]
    command.add_argument(
        *("--hook",),
        action="append",
        choices=hooks,
        metavar="HOOK",
        help="only events of this hook; may be given several times",
    )
    place = command.add_mutually_exclusive_group()
    for name, kind, text in (
        ("seq", int, "from this event on"),
        ("epoch", int, "from this epoch on"),
        ("step", int, "from this step of training on"),
        ("time", float, "from this second of the run on"),
    ):
        place.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    place.add_argument("--follow", action="store_true", help="go on with the run until it ends")
    command.add_argument("--json", action="store_true", help="a JSON object per line")
    command.add_argument("--limit", type=_count, metavar="N", help="at most so many")
    _incarnation(command)


def _diff(added: Any) -> None:
    command = _command(
        added,
        *("diff", commands.diff, "the first difference of two runs, with the events around it"),
        *(
            "railbus diff runs/fit-1 runs/fit-2",
            "railbus diff runs/fit-1 runs/fit-2 --tolerance net_outputs=1e-6 --ignore my_key",
        ),
    )
    command.add_argument("other", type=Path, metavar="OTHER", help="the run to compare it with")
    command.add_argument(
        *("--tolerance",),
        action="append",
        type=_tolerance,
        default=[],
        metavar="KEY=NUMBER",
        help="how far numbers of this key of cb_params may be apart; values are exact otherwise",
    )
    command.add_argument(
        *("--ignore",),
        action="append",
        default=[],
        metavar="KEY",
        help="a field of events, or a key of cb_params, that does not count, as times and run ids never do",
    )
    command.add_argument(
        "--context", type=_count, default=3, metavar="N", help="events shown around it (3)"
    )


def _replay(added: Any) -> None:
    command = _command(
        added,
        *("replay", commands.replay, "feed its events to callbacks, without a trainer"),
        *(
            "railbus replay runs/fit-1 --callback 'EarlyStopping(patience=3)'",
            "railbus replay runs/fit-1 --callback my.callbacks:Tuner --until on_train_epoch_end",
        ),
    )
    command.add_argument(
        *("--callback",),
        action="append",
        required=True,
        metavar="NAME",
        help="package.module:Name[(literals)], or Name of a built-in one; may be given several "
        "times, in the order of the list",
    )
    command.add_argument(
        "--until", type=_until, metavar="SEQ|HOOK", help="the last event that is fed"
    )
    command.add_argument("--json", action="store_true", help="every ack as a JSON object per line")
    _incarnation(command)


def _export(added: Any) -> None:
    command = _command(
        added,
        *("export", commands.export, "write it as CSV, JSON Lines, TensorBoard or SQLite"),
        *(
            "railbus export runs/fit-1 --to csv",
            "railbus export runs/fit-1 --to sqlite --output fit.sqlite --force",
        ),
    )
    formats = ("csv", "jsonl", "tensorboard", "sqlite")
    command.add_argument("--to", required=True, choices=formats, help="the format")
    command.add_argument(
        *("--output",),
        metavar="PATH",
        help="the file, for tensorboard the folder; <run id>.<format> here by default",
    )
    command.add_argument("--force", action="store_true", help="replace what is there")
    _incarnation(command)


def _verify(added: Any) -> None:
    command = _command(
        added,
        *("verify", commands.verify, "check sums, counts, order and the sequence of hooks"),
        *("railbus verify runs/fit-1",),
    )
    _incarnation(command)


def _recover(added: Any) -> None:
    _command(
        added,
        *("recover", commands.recover, "close torn files, cut off damage; originals are kept"),
        *("railbus recover runs/fit-1",),
    )


def _command(
    added: Any, name: str, act: Callable[..., commands.Lines], text: str, *examples: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = added.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("run", type=Path, metavar="RUN", help="see railbus --help")
    command.set_defaults(act=act)
    return command


def _incarnation(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        *("--incarnation",),
        type=int,
        metavar="N",
        help="which of the processes that carried the run on; the last by default",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")
    return int(text)


def _until(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _tolerance(text: str) -> tuple[str, float]:
    key, _, number = text.rpartition("=")
    try:
        return key, float(number)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected KEY=NUMBER, got {text!r}") from error
