"""`CheckpointConfig`: when `ModelCheckpoint` saves, and what it keeps."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .checks import count, flag

logger = logging.getLogger(__name__)

Format = Literal["ckpt", "safetensors"]
FORMATS = ("ckpt", "safetensors")


class CheckpointConfig:
    """When to save a checkpoint and how many to keep (MindSpore's name and parameters).

    Args:
        save_checkpoint_steps: save every n steps; beats seconds. 0 or None turns it off.
        save_checkpoint_seconds: save when so many seconds have passed since the last one. 0 or None
            turns it off.
        keep_checkpoint_max: keep the newest n files; an older one goes once a newer one is safe. 0
            or None keeps all.
        keep_checkpoint_per_n_minutes: where `keep_checkpoint_max` is 0: keep one file for every n
            minutes, and the newest. 0 or None keeps all.
        integrated_save: accepted; arrays are always saved whole.
        async_save: write in the background while training goes on; `True` or `"thread"`. The next
            save waits for the one before it, and so does the end of the run.
        saved_network: not supported, since the state of the very step is what is saved; None.
        append_info: what goes along: `"epoch_num"`, `"step_num"`, and at most one dict of JSON
            values.
        enc_key, enc_mode: encryption is not supported; `enc_key` must be None.
        exception_save: save `<prefix>-<epoch>_<step>_breakpoint` when the run fails.
        crc_check: accepted; every checkpoint has a checksum.
        remove_redundancy: accepted; nothing is saved twice.
        format: `"ckpt"`, an Orbax folder from which the run can be resumed, or `"safetensors"`, one
            file with the network.

    Raises:
        ArgumentTypeError, ArgumentError: wrong types or values, or nothing that would ever save.
    """

    def __init__(
        self,
        save_checkpoint_steps: int | None = 1,
        save_checkpoint_seconds: int | None = 0,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_per_n_minutes: int | None = 0,
        integrated_save: bool = True,
        async_save: bool | str = False,
        saved_network: None = None,
        append_info: Sequence[str | Mapping[str, Any]] | None = None,
        enc_key: None = None,
        enc_mode: str = "AES-GCM",
        exception_save: bool = False,
        crc_check: bool = False,
        remove_redundancy: bool = False,
        format: str = "ckpt",
    ) -> None:
        self.save_checkpoint_steps = _least("save_checkpoint_steps", save_checkpoint_steps)
        self.save_checkpoint_seconds = _least("save_checkpoint_seconds", save_checkpoint_seconds)
        self.keep_checkpoint_max = _least("keep_checkpoint_max", keep_checkpoint_max)
        self.keep_checkpoint_per_n_minutes = _least(
            "keep_checkpoint_per_n_minutes", keep_checkpoint_per_n_minutes
        )
        if not self.save_checkpoint_steps and not self.save_checkpoint_seconds:
            raise ArgumentError(
                "nothing would ever be saved: give save_checkpoint_steps or save_checkpoint_seconds"
            )
        if async_save not in (True, False, "thread"):
            raise ArgumentError(f"async_save must be a bool or 'thread', got {async_save!r}")
        if saved_network is not None or enc_key is not None:
            raise ArgumentError("saved_network and enc_key are not supported; leave them None")
        if format not in FORMATS:
            raise ArgumentError(f"format must be one of {FORMATS}, got {format!r}")
        self.async_save = bool(async_save)
        self.exception_save = flag("exception_save", exception_save)
        self.format = cast(Format, format)
        self.append_info = _append_info(append_info)
        if flag("remove_redundancy", remove_redundancy) or not flag(
            "integrated_save", integrated_save
        ):
            logger.info("integrated_save and remove_redundancy have no effect: arrays are whole")
        if flag("crc_check", crc_check):
            logger.info("crc_check has no effect: every checkpoint has a checksum")

    def notes(self, epoch: int, step: int) -> dict[str, Any]:
        """What `append_info` asks for, at that step of the run."""
        known = {"epoch_num": epoch, "step_num": step}
        notes: dict[str, Any] = {}
        for one in self.append_info:
            notes |= {one: known[one]} if isinstance(one, str) else one
        return notes


def _least(name: str, value: int | None) -> int:
    return 0 if value is None else count(name, value, 0)


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
