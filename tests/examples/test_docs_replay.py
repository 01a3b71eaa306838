"""docs/replay.md: its code is run as it stands, its test file too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs/replay.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = {code.splitlines()[0].removeprefix("# "): code for code in BLOCKS if code[0] == "#"}
INLINE = [code for code in BLOCKS if code[0] != "#"]
GOLDEN = "goldens/test_plateau/test_it_stops_at_the_plateau.acks.jsonl"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds the page's files, and the run that its script has recorded."""
    folder = tmp_path_factory.mktemp("page")
    for name, code in FILES.items():
        (folder / name).write_text(code)
    done = run(folder, "record.py")
    assert done.returncode == 0, done.stderr
    assert "stopped by EarlyStopping in epoch" in done.stdout
    return folder


def test_the_page_has_a_script_and_a_test_file():
    assert list(FILES) == ["record.py", "test_plateau.py"]
    assert len(INLINE) == 3


def test_its_code_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for code in INLINE:
        exec(code, names)

    printed = capsys.readouterr().out
    assert "sealed=True, ended=True" in printed
    assert "which the record does not have" in printed
    assert "EarlyStopping stop: expected " in printed


def test_its_test_file_passes_once_its_golden_is_written(folder):
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plateau.py"]
    assert "1 failed, 2 passed" in run(folder, *command).stdout
    assert "3 passed" in run(folder, *command, "--railbus-goldens=new").stdout
    assert "3 passed" in run(folder, *command).stdout

    shown = re.search(r"^```\n(\{\"railbus\".*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    kinds = [kind(line) for line in (folder / GOLDEN).read_text().splitlines()]
    assert [one for one in shown[1].splitlines() if one != "..." and kind(one) not in kinds] == []
    assert kinds[:2] == [kind(line) for line in shown[1].splitlines()[:2]]


def kind(line: str) -> object:
    """A line of a golden without its numbers, which may be others on another machine."""
    return json.loads(re.sub(r"[0-9.]+", "0", line))
