"""What a run is asked to do, checked before anything is compiled or entered."""

import logging
import re
import secrets
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec

from railbus.schemas.errors import ArgumentError
from railbus.schemas.lifecycle import Plan
from railbus.subscribers.callback import Callback, callback_list, refuse_legacy
from railbus.subscribers.checks import count
from railbus.subscribers.recorder import Recorder

from .batches import BatchSource
from .resume import Cut

logger = logging.getLogger(__name__)

RUN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Arguments(msgspec.Struct, kw_only=True, frozen=True):
    """The arguments of `train`, `fit` or `eval`, as given."""

    kind: Literal["train", "fit", "eval"]
    epoch: Any = 1
    train_dataset: Any = None
    valid_dataset: Any = None
    valid_frequency: Any = 1
    callbacks: Any = None
    sinking: bool = False
    valid_sinking: bool = False
    sink_size: int = -1
    initial_epoch: Any = 0
    run_id: str | None = None
    resume: Any = None
    record: str | Path | None = None
    serve: str | None = None

    @property
    def validates(self) -> bool:
        """Whether a validation belongs to it."""
        return self.valid_dataset is not None

    def checked_callbacks(self) -> list[Callback]:
        """The callbacks as a list of its own.

        Raises:
            CallbackTypeError: something in it is no `Callback`.
            ArgumentError, ArgumentTypeError: `fit` with older hook names, or no path in `record`.
        """
        callbacks = callback_list(self.callbacks)
        if self.record is not None:
            callbacks.append(Recorder(self.record))
        if self.kind == "fit":
            refuse_legacy(callbacks)
        return callbacks

    def checked_name(self, resumed: str | None) -> str:
        """The run's name: that of the run that is `resumed`, or made from the time by default.

        Raises:
            ArgumentError: it is no name of a run.
        """
        if self.run_id is None and resumed is not None:
            return resumed
        if self.run_id is None:
            return f"{self.kind}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        if not isinstance(self.run_id, str) or not RUN_ID.fullmatch(self.run_id):
            raise ArgumentError(
                f"run_id must be lower-case letters, digits, '-' and '_', at most 64 of them, "
                f"got {self.run_id!r}"
            )
        return self.run_id

    def plan(
        self,
        train: BatchSource | None,
        valid: BatchSource | None,
        exact: bool,
        cut: Cut | None = None,
    ) -> Plan:
        """The shape of the run; one that is resumed begins where it was interrupted.

        Raises:
            ArgumentError, ArgumentTypeError: for epochs or a frequency that cannot work.
            DatasetError: for data that cannot be read that often, or at all.
        """
        if self.sink_size != -1:
            logger.info("sink_size has no effect: every step is visible in any case")
        if train is None:
            assert valid is not None
            valid.peek()
            return Plan(mode="eval", valid_batch_num=valid.size)
        epochs = count("epoch", self.epoch, 1)
        initial = count("initial_epoch", self.initial_epoch, 0)
        if initial >= epochs:
            raise ArgumentError(
                f"initial_epoch must be below epoch, the number of the last one, got {initial} and "
                f"{epochs}"
            )
        if cut is not None:
            initial = _gone_on_with(cut, epochs)
            _compare_sizes(cut, train.size)
        plan = Plan(
            mode="train",
            epochs=epochs,
            initial_epoch=initial,
            resumed=None if cut is None else cut.place,
            batch_num=cut.batch_num if train.size is None and cut is not None else train.size,
            valid_batch_num=None if valid is None else valid.size,
            valid_frequency=None if valid is None else _frequency(self.valid_frequency),
            exact=exact,
        )
        train.check_epochs(epochs - initial)
        train.peek()
        if valid is not None:
            valid.check_epochs(sum(map(plan.validates, range(initial + 1, epochs + 1))))
            valid.peek()
        return plan


def _gone_on_with(cut: Cut, epochs: int) -> int:
    """The last epoch that is over in a run that is resumed; says where there is none to come."""
    if cut.epoch > epochs:
        raise ArgumentError(
            f"epoch must be the number of the last epoch, {cut.epoch} or more, to go on with "
            f"run {cut.run_id!r}, which has come to epoch {cut.epoch}; got {epochs}"
        )
    if cut.stop is not None:
        logger.warning(
            "run %s was stopped by %s: %s; no further step is trained",
            cut.run_id,
            cut.stop.by,
            cut.stop.reason,
        )
    elif cut.place.initial_epoch == epochs:
        logger.info("run %s is over: all %d epochs are trained", cut.run_id, epochs)
    return cut.place.initial_epoch


def _compare_sizes(cut: Cut, size: int | None) -> None:
    """Other data are no data to go on with in the middle of an epoch."""
    if size is None or cut.batch_num in (None, size):
        return
    said = (
        f"run {cut.run_id!r} was interrupted in epochs of {cut.batch_num} steps, this train_dataset "
        f"has {size}"
    )
    if cut.batches is not None:
        raise ArgumentError(f"{said}; go on with the same data and batch size")
    logger.warning("%s; the run is not the one that it would have been", said)


def _frequency(value: Any) -> int | tuple[int, ...]:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes, dict)):
        return tuple(count("an epoch in valid_frequency", one, 1) for one in value)
    return count("valid_frequency", value, 1)
