"""The name of a checkpoint: a whole one stands for it, wherever the process is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from railbus.subscribers.checkpoint_place import named, remove, replace, standing

SCRIPT = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from railbus.subscribers.checkpoint_place import remove, replace

CHANGES = ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree")

def whole(folder, version):
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text(version)

def write(path, version):
    spare = path.with_name("spare" + version)
    whole(spare / "new", version)
    replace(spare / "new", path, spare)
    shutil.rmtree(spare)

def killed_before(number, act, *arguments):
    child = os.fork()
    if child == 0:
        count = itertools.count(1)
        def watch(event, _):
            if event in CHANGES and next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(watch)
        act(*arguments)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0

acts = {"write": lambda path: write(path, "3"), "remove": remove}
root, second = Path(sys.argv[1]), acts[sys.argv[2]]
for one in itertools.count(1):
    for two in itertools.count(1):
        path = root / f"{one}-{two}" / "net.ckpt"
        whole(path, "1")
        first_killed = killed_before(one, write, path, "2")
        if not killed_before(two, second, path):
            break
    if not first_killed:
        break
"""


def killed(root: Path, second: str) -> list[Path]:
    """The names that a writer and then another one have worked on, killed at all pairs of steps."""
    subprocess.run([sys.executable, "-c", SCRIPT, os.fspath(root), second], check=True)
    return [folder / "net.ckpt" for folder in sorted(root.iterdir())]


def versions(path: Path) -> set[str]:
    return {(standing(path) / name).read_text() for name in ("a", "b")}


def whole(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text(version)
    return folder


def write(path: Path, version: str) -> None:
    spare = path.with_name(f"spare{version}")
    replace(whole(spare / "new", version), path, spare)


def test_after_two_killed_writers_a_whole_version_stands_at_the_name(tmp_path):
    paths = killed(tmp_path, "write")

    found = [versions(path) for path in paths]
    assert all(len(one) == 1 for one in found)
    assert set.union(*found) == {"1", "2", "3"}
    assert any(not path.exists() for path in paths)
    for path in paths:
        assert named(path.parent).count(path) == 1
        write(path, "4")
        assert versions(path) == {"4"}


def test_what_was_being_deleted_is_whole_or_gone(tmp_path):
    paths = killed(tmp_path, "remove")

    there = [path for path in paths if standing(path).exists()]
    assert all(len(versions(path)) == 1 for path in there)
    assert 0 < len(there) < len(paths)
    for path in paths:
        remove(path)
        assert not standing(path).exists()


def test_a_folder_that_cannot_take_the_name_leaves_the_one_before(tmp_path):
    path = whole(tmp_path / "net.ckpt", "1")

    with pytest.raises(FileNotFoundError):
        replace(tmp_path / "lost", path, tmp_path)

    assert versions(path) == {"1"}
    assert path.exists()


def test_a_name_that_nothing_stands_for_is_itself(tmp_path):
    assert standing(tmp_path / "net.ckpt") == tmp_path / "net.ckpt"
    assert named(tmp_path / "missing") == []
