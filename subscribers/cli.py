"""`railbus`: looks at recorded runs from a terminal."""

import os
import sys
import time
from collections.abc import Sequence

from railbus.schemas.errors import RailbusError

from .commands import Lines
from .parser import parser

INTERRUPTED, BROKEN_PIPE = 130, 141  # as a shell tells the signals of
TOLD_AFTER, TOLD_EVERY = 1.0, 0.2  # seconds of work without, and between, news of progress


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
        argv: the arguments; those of the process by default.

    Raises:
        SystemExit: after `--help`, and for arguments that make no command (2).
    """
    _open_closed()
    given = parser().parse_args(argv)
    progress = _Progress()
    try:
        given.braille = _takes_braille()
        follows = getattr(given, "follow", False)
        return _printed(given.act(given, progress), progress, flush=follows)
    except (RailbusError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            _stop_printing()
            return BROKEN_PIPE
        progress.clear()
        sys.stdout.flush()
        print(f"railbus: error: {plain(_words(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.clear()
        return INTERRUPTED


def plain(text: str) -> str:
    """`text` on one line, without characters that a terminal acts on: recordings are untrusted."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _printed(lines: Lines, progress: "_Progress", flush: bool) -> int:
    try:
        while True:
            text = next(lines)
            progress.clear()
            print(plain(text), flush=flush)
    except StopIteration as end:
        progress.clear()
        sys.stdout.flush()
        code: int = end.value
        return code


def _words(error: RailbusError | OSError) -> str:
    if isinstance(error, OSError) and not isinstance(error, RailbusError):
        return f"{error.strerror}: '{error.filename}'" if error.filename else str(error)
    return str(error)


def _takes_braille() -> bool:
    """Whether stdout's encoding has braille; characters that it has not are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        "⣿".encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _open_closed() -> None:
    """Python has no stream where who started it has closed stdout or stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


def _stop_printing() -> None:
    """Who reads has left: what is still buffered must not be written at the exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        pass


class _Progress:
    """Tells on stderr how many events were read, where that takes long and a person looks on."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._count, self._next, self._told = 0, time.monotonic() + TOLD_AFTER, False

    def __call__(self) -> None:
        """One more."""
        self._count += 1
        if self._on and not self._count % 256 and time.monotonic() > self._next:
            self._next, self._told = time.monotonic() + TOLD_EVERY, True
            print(f"\r{self._count} events read", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """The line makes room for others."""
        if self._told:
            print(f"\r{' ' * 40}\r", end="", file=sys.stderr, flush=True)
            self._told = False
