"""The name of a checkpoint on disk: whenever the process is killed, a whole one stands for it.

No POSIX system replaces a folder at once. So the one before is moved aside, to `.<name>.old`, until
the new one bears the name; whoever reads looks there, too. Each step is one rename:

`<name>`     | `.<name>.old` | what `standing` finds
-------------+---------------+-----------------------
the one before | -           | the one before
-            | the one before | the one before
the new one  | the one before | the new one
the new one  | -             | the new one
"""

import os
from pathlib import Path
from shutil import rmtree


def standing(path: Path) -> Path:
    """Where the checkpoint named `path` lies now; `path` itself where there is none."""
    aside = _aside(path)
    return aside if not os.path.lexists(path) and aside.is_dir() else path


def named(folder: Path) -> list[Path]:
    """The names in a folder, those of checkpoints that are aside included."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    aside = {name[1:-4] for name in names if name.startswith(".") and name.endswith(".old")}
    return [folder / name for name in sorted(names | aside)]


def replace(new: Path, path: Path, spare: Path) -> None:
    """Give the folder `new` the name `path`.

    Args:
        spare: a folder in the same file system; what `path` stood for before goes there.
    """
    aside = _aside(path)
    if path.exists():
        if aside.exists():
            aside.rename(spare / "older")
        path.rename(aside)
    try:
        new.rename(path)
    except OSError:
        if aside.exists():
            aside.rename(path)
        raise
    sync(path.parent)
    if aside.exists():
        aside.rename(spare / "old")


def remove(path: Path) -> None:
    """Delete a checkpoint; whatever interrupts that, none that is half gone bears its name."""
    for one in (_aside(path), path):
        if one.is_dir():
            gone = path.with_name(f".{path.name}.gone")
            rmtree(gone, ignore_errors=True)
            rmtree(one.rename(gone), ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Let what was written to a file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")
