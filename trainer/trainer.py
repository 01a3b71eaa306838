"""`Trainer`: the public way to train, fit, evaluate and predict (DESIGN section 5)."""

import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import optax
from flax import nnx

from railbus.bus.bus import EventBus
from railbus.schemas.errors import ArgumentError, ArgumentTypeError, BusClosed
from railbus.schemas.lifecycle import Plan
from railbus.subscribers.callback import callback_list, refuse_legacy

from .batches import BatchSource
from .loop import RunLoop
from .metrics import MetricSet
from .network import FunctionalNetwork, NnxNetwork, Values, adapt
from .program import Program, TrainState
from .result import RunResult, RunStats
from .run import Execution, Run, carry_out, start
from .state import handles, live

logger = logging.getLogger(__name__)

RUN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Trainer:
    """Trains a network; callbacks are called at every step, in order, and may stop the run.

    Args:
        network: a `flax.nnx` module, which holds the trained values after a run, or an object
            with `init(rng, *inputs)` and `apply(params, *inputs)`, whose values are in `params`.
        loss_fn: `loss_fn(outputs, labels)`, one value per example, a scalar, or `(loss, aux)`; a
            batch is then `(*inputs, labels)`. None: the network takes the whole batch and gives
            the loss.
        optimizer: an optax transformation; None only evaluates.
        metrics: names (`accuracy`, `loss`, `top_<k>_accuracy`, `mae`, `mse`), or a dict of name to
            object with `reset`, `update` and `compute`.
        eval_network: takes the place of `network` in evaluation; an nnx module with the same
            parameters.
        seed: of the initial values of an `init` / `apply` network.
        bus: where the runs' events go; a new one by default.

    Attributes:
        bus: observe it, from any thread or event loop.

    Raises:
        ArgumentError, ArgumentTypeError: for an argument that cannot work.
    """

    def __init__(
        self,
        network: Any,
        loss_fn: Callable[..., Any] | None = None,
        optimizer: optax.GradientTransformation | None = None,
        metrics: Collection[str] | Mapping[str, Any] | None = None,
        eval_network: Any = None,
        *,
        seed: int = 0,
        bus: EventBus | None = None,
    ) -> None:
        if loss_fn is not None and not callable(loss_fn):
            raise ArgumentTypeError(f"loss_fn must be callable or None, got {loss_fn!r}")
        if optimizer is not None and not hasattr(optimizer, "update"):
            raise ArgumentTypeError(f"optimizer must be an optax transformation, got {optimizer!r}")
        self.bus = EventBus() if bus is None else bus
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self.eval_network = eval_network
        self._metrics = MetricSet.of(metrics)
        self._adapted = adapt(network)
        evaluated = self._adapted if eval_network is None else adapt(eval_network)
        self._program = Program(self._adapted, evaluated, loss_fn, optimizer, self._metrics)
        self._seed = seed
        self._state: TrainState | None = None
        self._training: RunLoop | None = None

    @property
    def params(self) -> Any:
        """The trained values as a nested dict of arrays; None before the first run."""
        return None if self._state is None else self._state.network.params

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        run_id: str | None = None,
    ) -> RunResult:
        """Train from epoch `initial_epoch + 1` to `epoch`; works inside a running event loop too.

        Args:
            epoch: number of the last epoch.
            train_dataset: an iterable of batches that can be iterated once per epoch.
            callbacks: a `Callback`, or a list or tuple of them.
            dataset_sink_mode: accepted, without effect: every step is visible anyway.
            sink_size: accepted, without effect.
            run_id: name of the run on the bus; made from the time by default.

        Raises:
            RailbusError: an argument, the data or the callbacks cannot work; nothing has run.
            BaseException: what a callback, the data or the program raised.
        """
        prepared = self._prepare(
            epoch, train_dataset, None, None, callbacks, initial_epoch, run_id,
            (dataset_sink_mode, sink_size),
        )
        return carry_out(self.bus, prepared)

    def fit(
        self,
        epoch: int,
        train_dataset: Any,
        valid_dataset: Any = None,
        valid_frequency: int | Collection[int] = 1,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        run_id: str | None = None,
    ) -> RunResult:
        """Train, and validate every `valid_frequency` epochs or at the epochs it lists.

        Args and errors as in `train`; besides:
            valid_dataset: an iterable of batches; None trains without validation.

        Raises:
            ArgumentError: no metrics for a validation, or callbacks with older hook names.
        """
        prepared = self._prepare_fit(
            epoch, train_dataset, valid_dataset, valid_frequency, callbacks, initial_epoch, run_id,
            (dataset_sink_mode or valid_dataset_sink_mode, sink_size),
        )
        return carry_out(self.bus, prepared)

    def eval(
        self,
        valid_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        *,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate; inside a hook of a run, the parameters at that event.

        Returns:
            The metrics; `{}` where a callback stopped before the first batch.

        Raises:
            ArgumentError: the trainer has no metrics.
        """
        prepared = self._prepare_eval(valid_dataset, callbacks, run_id, (dataset_sink_mode, -1))
        return dict(carry_out(self.bus, prepared).metrics)

    def predict(self, *inputs: Any) -> Any:
        """The network's outputs in evaluation mode, on the device."""
        return self._program.predict(self._values(inputs).network, inputs)

    def start_train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        initial_epoch: int = 0,
        *,
        run_id: str | None = None,
    ) -> AbstractAsyncContextManager[Run]:
        """`train` beside the caller: `async with trainer.start_train(...) as run`."""
        prepared = self._prepare(
            epoch, train_dataset, None, None, callbacks, initial_epoch, run_id, (False, -1)
        )
        return start(self.bus, prepared)

    def start_fit(
        self,
        epoch: int,
        train_dataset: Any,
        valid_dataset: Any = None,
        valid_frequency: int | Collection[int] = 1,
        callbacks: Any = None,
        initial_epoch: int = 0,
        *,
        run_id: str | None = None,
    ) -> AbstractAsyncContextManager[Run]:
        """`fit` beside the caller: `async with trainer.start_fit(...) as run`."""
        prepared = self._prepare_fit(
            epoch, train_dataset, valid_dataset, valid_frequency, callbacks, initial_epoch, run_id,
            (False, -1),
        )
        return start(self.bus, prepared)

    def start_eval(
        self, valid_dataset: Any, callbacks: Any = None, *, run_id: str | None = None
    ) -> AbstractAsyncContextManager[Run]:
        """`eval` beside the caller: `async with trainer.start_eval(...) as run`."""
        return start(self.bus, self._prepare_eval(valid_dataset, callbacks, run_id, (False, -1)))

    def _prepare_fit(
        self,
        epoch: int,
        train_dataset: Any,
        valid_dataset: Any,
        valid_frequency: int | Collection[int],
        callbacks: Any,
        initial_epoch: int,
        run_id: str | None,
        sinking: tuple[bool, int],
    ) -> Execution:
        refuse_legacy(callback_list(callbacks))
        if valid_dataset is None:
            return self._prepare(
                epoch, train_dataset, None, None, callbacks, initial_epoch, run_id, sinking
            )
        if not self._metrics.names:
            raise ArgumentError("fit with a valid_dataset needs metrics, Trainer(metrics={...})")
        return self._prepare(
            epoch,
            train_dataset,
            valid_dataset,
            _frequency(valid_frequency),
            callbacks,
            initial_epoch,
            run_id,
            sinking,
        )
