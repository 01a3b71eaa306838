"""`checkpoints`: the network of a recorded run, out of the checkpoints that the run has saved."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from railbus.schemas.events import Event

from .checks import path
from .recorded import Load

NAME = re.compile(r".*-(?P<epoch>[0-9]+)_(?P<step>[0-9]+)\.(?:ckpt|safetensors)")


def checkpoints(
    directory: str | os.PathLike[str], read: Callable[[Path], Mapping[str, Any]]
) -> Load:
    """`replay(..., network=checkpoints(...))`: parameters at the steps that have a checkpoint.

    By the names that `ModelCheckpoint` gives them, `<prefix>-<epoch>_<step in epoch>.ckpt`; the
    newest where there are several. It holds the acks to its event too, so what a callback assigned
    there is in it already. Of a network with other state than parameters, that is among them.

    Args:
        read: gives a checkpoint's arrays by dotted name: `railbus.trainer.load_checkpoint`.

    Raises:
        ArgumentTypeError, ArgumentError: `directory` is no path.
    """
    folder = path("directory", directory)

    def load(event: Event) -> Any:
        shown = event.cb_params
        place = shown.get("cur_epoch_num"), shown.get("cur_batch_num")
        found = [one for one in _saved(folder) if _place(one.name) == place]
        if not found:
            return None
        newest = max(found, key=lambda one: one.stat().st_mtime_ns)
        return _nested(read(newest))

    return load


def _saved(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _place(name: str) -> tuple[int, int] | None:
    match = NAME.fullmatch(name)
    return None if match is None else (int(match["epoch"]), int(match["step"]))


def _nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts inside one another, by the parts of the names."""
    outermost: dict[str, Any] = {}
    for name, array in arrays.items():
        *outer, last = name.split(".")
        inner = outermost
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = array
    return outermost
