"""The pytest plugin: a fixture that replays recorded runs, and goldens of what callbacks answer."""

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from railbus.bus.stream import Stream

    from .goldens import Golden
    from .rehearsal import RecordedRun

MODES = ("check", "new", "update")
FOLDER = "goldens"
LONGEST = 150  # characters of a golden's name
OPTION = "--railbus-goldens"
_GOLDENS = pytest.StashKey["_Goldens"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--railbus-goldens`: what to do with goldens that are missing or differ."""
    group = parser.getgroup("railbus")
    group.addoption(
        OPTION,
        choices=MODES,
        default="check",
        help="goldens of callbacks' acks: compare (check, default), write the missing ones too "
        "(new), or write all that differ (update); where CI is set, only check",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write goldens in CI, where nobody reads them."""
    mode = config.getoption(OPTION)
    if mode != "check" and os.environ.get("CI"):
        raise pytest.UsageError(
            f"{OPTION}={mode} writes goldens, which CI must not; run it by hand"
        )
    config.stash[_GOLDENS] = goldens = _Goldens(mode)
    config.pluginmanager.register(goldens, "railbus-goldens")


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], "RecordedRun"]]:
    """`run = replay("runs/plateau")`: a recorded run by its path, or a stream (`synthesize`).

    A path is looked for beside the test, then from pytest's root. `run.into(callback)` feeds it to
    callbacks; see `railbus.subscribers.rehearsal.RecordedRun`.
    """
    from railbus.bus.recording import Recording

    from .rehearsal import RecordedRun

    opened: list[RecordedRun] = []
    goldens = request.config.stash[_GOLDENS]

    def open_run(run: "str | Path | Stream") -> RecordedRun:
        stream: Any = run
        if isinstance(run, str | Path):
            beside = (request.path.parent / run, request.config.rootpath / run)
            stream = Recording(next((path for path in beside if path.exists()), beside[0]))
        opened.append(RecordedRun(stream, lambda: goldens.next_of(request.node)))
        return opened[-1]

    yield open_run
    for one in opened:
        one.close()


class _Goldens:
    """The goldens of a session: which tests use which, and which nobody uses."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._used: dict[Path, set[Path]] = defaultdict(set)  # by folder of a test module
        self._counts: dict[str, int] = defaultdict(int)
        self._collected: dict[Path, int] = defaultdict(int)
        self._passed: dict[Path, int] = defaultdict(int)
        self._folders: dict[str, Path] = {}
        self._partial = False
        self._unused: list[Path] = []

    def next_of(self, item: pytest.Item) -> "Golden":
        """The golden of a test; of its second comparison another."""
        from .goldens import Golden

        self._counts[item.nodeid] = count = self._counts[item.nodeid] + 1
        number = "" if count == 1 else f".{count}"
        path = _folder(item.path) / f"{_name(item)}{number}.acks.jsonl"
        self._used[_folder(item.path)].add(path)
        return Golden(path, self._mode)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before anything is left out: how many tests each module has."""
        for item in items:
            self._collected[_folder(item.path)] += 1
            self._folders[item.nodeid] = _folder(item.path)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tests chosen one by one say nothing about goldens of the others."""
        config = session.config
        chosen = any("::" in argument for argument in config.args)
        self._partial = chosen or bool(config.getoption("lf", False))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has ended."""
        if report.when == "call" and report.passed and report.nodeid in self._folders:
            self._passed[self._folders[report.nodeid]] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Goldens that no test of a module that passed as a whole has used are a failure."""
        if self._partial or hasattr(session.config, "workerinput"):
            return
        for folder, count in self._collected.items():
            if self._passed[folder] == count and folder.is_dir():
                there = set(folder.glob("*.acks.jsonl"))
                self._unused += sorted(there - self._used[folder])
        if self._unused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name them."""
        for path in self._unused:
            terminalreporter.write_line(f"railbus: no test uses the golden '{path}'", red=True)


def _name(item: pytest.Item) -> str:
    """A test's name as that of a file, which no other test of its module has."""
    full = item.nodeid.partition("::")[2] or item.name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", full.replace("::", ".")).strip("-")[:LONGEST]
    plain = re.sub(r"\[([A-Za-z0-9_.-]*)\]$", r"-\1", full.replace("::", ".")).strip("-")
    return name if name == plain else f"{name}-{zlib.crc32(full.encode()):08x}"


def _folder(module: Path) -> Path:
    """Where the goldens of a test module are."""
    return module.parent / FOLDER / module.stem
