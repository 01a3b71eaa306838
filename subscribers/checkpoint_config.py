"""`CheckpointConfig`: when `ModelCheckpoint` saves, and what it keeps."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .checks import count

Format = Literal["ckpt", "safetensors"]
FORMATS = ("ckpt", "safetensors")


class CheckpointConfig:
    """When to save a checkpoint and how many to keep (MindSpore's name).

    Args:
        save_checkpoint_steps: save every n steps; beats seconds. 0 or None turns it off.
        save_checkpoint_seconds: save when so many seconds have passed since the last one. 0 or None
            turns it off.
        keep_checkpoint_max: keep the newest n files; an older one goes once a newer one is safe. 0
            or None keeps all.
        append_info: what goes along: `"epoch_num"`, `"step_num"`, and at most one dict of JSON
            values.
        format: `"ckpt"`, an Orbax folder with the network and the optimizer, or `"safetensors"`, one
            file with the network.

    Raises:
        ArgumentTypeError, ArgumentError: wrong types or values, or nothing that would ever save.
    """

    def __init__(
        self,
        save_checkpoint_steps: int | None = 1,
        save_checkpoint_seconds: int | None = 0,
        keep_checkpoint_max: int | None = 5,
        *,
        append_info: Sequence[str | Mapping[str, Any]] | None = None,
        format: str = "ckpt",
    ) -> None:
        self.save_checkpoint_steps = count("save_checkpoint_steps", save_checkpoint_steps or 0, 0)
        self.save_checkpoint_seconds = count(
            "save_checkpoint_seconds", save_checkpoint_seconds or 0, 0
        )
        self.keep_checkpoint_max = count("keep_checkpoint_max", keep_checkpoint_max or 0, 0)
        if not self.save_checkpoint_steps and not self.save_checkpoint_seconds:
            raise ArgumentError(
                "nothing would ever be saved: give save_checkpoint_steps or save_checkpoint_seconds"
            )
        if format not in FORMATS:
            raise ArgumentError(f"format must be one of {FORMATS}, got {format!r}")
        self.format = cast(Format, format)
        self.append_info = _append_info(append_info)


def _append_info(given: Any) -> tuple[str | Mapping[str, Any], ...]:
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)):
        raise ArgumentTypeError(f"append_info must be a list, got {type(given).__name__}")
    dicts = [one for one in given if isinstance(one, dict)]
    names = [one for one in given if not isinstance(one, dict)]
    if len(dicts) > 1 or any(one not in ("epoch_num", "step_num") for one in names):
        raise ArgumentError(
            f"append_info holds 'epoch_num', 'step_num' and at most one dict, got {given!r}"
        )
    return tuple(given)
