"""`Trainer`: the public way to train, fit, evaluate and predict (DESIGN section 5)."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import optax

from railbus.bus.bus import EventBus
from railbus.schemas.errors import ArgumentError, ArgumentTypeError, BusClosed
from railbus.schemas.hooks import Mode
from railbus.subscribers.callback import Callback, needs_of, refuse_overwriting
from railbus.subscribers.recorder import Recorder, refuse_shared

from .arguments import Arguments
from .batches import BatchSource
from .blocks import fed
from .configuration import config_of
from .cost import StepCost
from .forms import beside, metrics_of, result_of, waiting
from .loop import RunLoop
from .metrics import MetricSet
from .network import FunctionalNetwork, Values, adapt
from .program import Program, TrainState
from .result import RunStats
from .resume import Point, find, read_state
from .run import Execution
from .runahead import RunAhead, checked
from .setup import pipeline_of, sources_of
from .state import Handles, live
from .tree import same_structure, strong


class Trainer:
    """Trains a network; callbacks see every step, in order, and may stop the run at any of them.

    Args:
        network: a `flax.nnx` module, which holds the trained values after a run, or an object
            with `init(rng, *inputs)` and `apply(params, *inputs)`, whose values are in `params`.
        loss_fn: `loss_fn(outputs, labels)`: one value per example, a scalar, or `(loss, aux)`. A
            batch is then `(*inputs, labels)`. None: the network takes the whole batch and gives
            the loss.
        optimizer: an optax transformation; None only evaluates.
        metrics: names (`accuracy`, `loss`, `top_<k>_accuracy`, `mae`, `mse`), or a dict of name to
            object with `reset`, `update` and `compute`.
        eval_network: takes the place of `network` in evaluation, with the same parameters.
        run_ahead: how far the device runs ahead of the callbacks; they cannot tell.
        seed: of the initial values of an `init` / `apply` network.
        bus: where the runs' events go; one of its own by default.

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
        run_ahead: RunAhead = RunAhead(),  # noqa: B008  # frozen
        seed: int = 0,
        bus: EventBus | None = None,
    ) -> None:
        if loss_fn is not None and not callable(loss_fn):
            raise ArgumentTypeError(f"loss_fn must be callable or None, got {loss_fn!r}")
        if optimizer is not None and not (
            hasattr(optimizer, "init") and hasattr(optimizer, "update")
        ):
            raise ArgumentTypeError(
                f"optimizer must be an optax transformation, for example optax.adam(1e-3), got "
                f"{optimizer!r}"
            )
        self.bus = EventBus() if bus is None else bus
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self.eval_network = eval_network
        self._metrics = MetricSet.of(metrics)
        self._adapted = adapt(network)
        evaluated = self._adapted if eval_network is None else adapt(eval_network)
        self._program = Program(self._adapted, evaluated, loss_fn, optimizer, self._metrics)
        self.run_ahead = checked(run_ahead)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ArgumentTypeError(f"seed must be an int, got {type(seed).__name__} {seed!r}")
        self._seed = seed
        self._state: TrainState | None = None
        self._training: RunLoop | None = None

    @property
    def params(self) -> Any:
        """The trained values as nested dicts of arrays; None before the first run."""
        return None if self._state is None else self._state.network.params

    def _train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        run_id: str | None = None,
        resume: str | Path | None = None,
        record: str | Path | None = None,
        serve: str | None = None,
    ) -> Arguments:
        """Train from epoch `initial_epoch + 1` to `epoch`; works inside a running event loop too.

        Args:
            epoch: number of the last epoch.
            train_dataset: an iterable of batches, iterated once per epoch.
            callbacks: a `Callback`, or a list or tuple of them.
            dataset_sink_mode: keep an `ArrayDataset` that fits on the device and pick batches
                there; every step is visible in any case.
            sink_size: accepted, without effect.
            run_id: the run's name on the bus; made from the time by default.
            resume: go on with an interrupted run: a checkpoint's path, or "latest" for the newest
                one of the callbacks'; where there is none the run begins anew. The run is then
                the one that it would have been, bit for bit, callbacks' states included; data
                sets must give the same batches again.
            record: directory of recordings; short for a `Recorder` at the end of the list.
            serve: `"127.0.0.1:8765"` lets other processes watch and steer the run while it is on;
                a command for that is printed. More can be chosen with `bus.serving.serve`.

        Raises:
            RailbusError: arguments, data or callbacks cannot work; nothing has run.
            BaseException: what a callback, the data or the program raised.
        """
        return Arguments(
            kind="train",
            epoch=epoch,
            train_dataset=train_dataset,
            callbacks=callbacks,
            sinking=dataset_sink_mode,
            sink_size=sink_size,
            initial_epoch=initial_epoch,
            run_id=run_id,
            resume=resume,
            record=record,
            serve=serve,
        )

    def _fit(
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
        resume: str | Path | None = None,
        record: str | Path | None = None,
        serve: str | None = None,
    ) -> Arguments:
        """Train, and validate every `valid_frequency` epochs or at the epochs it lists.

        Arguments and errors are those of `train`, and:

        Args:
            valid_dataset: an iterable of batches, iterated once per validation; None: no validation.

        Raises:
            ArgumentError: a validation without metrics, or callbacks with older hook names.
        """
        return Arguments(
            kind="fit",
            epoch=epoch,
            train_dataset=train_dataset,
            valid_dataset=valid_dataset,
            valid_frequency=valid_frequency,
            callbacks=callbacks,
            sinking=dataset_sink_mode,
            valid_sinking=valid_dataset_sink_mode,
            sink_size=sink_size,
            initial_epoch=initial_epoch,
            run_id=run_id,
            resume=resume,
            record=record,
            serve=serve,
        )

    def _eval(
        self,
        valid_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        *,
        run_id: str | None = None,
        record: str | Path | None = None,
    ) -> Arguments:
        """Evaluate; inside a hook of a run, the parameters at that event.

        Returns:
            The metrics; `{}` where a callback stopped it before the first batch.

        Raises:
            ArgumentError: the trainer has no metrics.
        """
        return Arguments(
            kind="eval",
            valid_dataset=valid_dataset,
            callbacks=callbacks,
            valid_sinking=dataset_sink_mode,
            run_id=run_id,
            record=record,
        )

    train, start_train = waiting(_train, result_of), beside(_train)
    fit, start_fit = waiting(_fit, result_of), beside(_fit)
    eval, start_eval = waiting(_eval, metrics_of), beside(_eval)

    def predict(self, *inputs: Any) -> Any:
        """The network's outputs in evaluation mode, on the device."""
        if self._training is not None:
            return self._program.predict(self._training.here.state.network, inputs)
        return self._program.predict(self._values(inputs), inputs)

    def _prepare(self, arguments: Arguments) -> Execution:
        """Check everything that can be checked before anything is compiled or entered."""
        callbacks = arguments.checked_callbacks()
        if (arguments.validates or arguments.kind == "eval") and not self._metrics.names:
            raise ArgumentError("an evaluation needs metrics, for example metrics={'accuracy'}")
        if arguments.kind != "eval" and self.optimizer is None:
            raise ArgumentError("training needs an optimizer, for example optax.sgd(1e-2)")
        settings = checked(self.run_ahead)
        needs_of(callbacks)
        if not settings.exact:
            refuse_overwriting(callbacks)
        point = None if arguments.kind == "eval" else find(arguments.resume, callbacks)
        sources, arrays = sources_of(arguments, settings, {} if point is None else point.cut.data)
        try:
            return self._prepared(arguments, callbacks, point, settings, sources, arrays)
        except BaseException:
            for source in sources.values():
                source.end()
            raise

    def _prepared(
        self,
        arguments: Arguments,
        callbacks: list[Callback],
        point: Point | None,
        settings: RunAhead,
        sources: Mapping[Mode, BatchSource],
        arrays: Mapping[Mode, Any],
    ) -> Execution:
        cut = None if point is None else point.cut
        run_id = arguments.checked_name(None if cut is None else cut.run_id)
        incarnation = 0 if cut is None else cut.incarnation + 1
        recorders = [one for one in callbacks if isinstance(one, Recorder)]
        refuse_shared(recorders)
        for one in recorders:
            incarnation = one.claim(run_id, incarnation)
        plan = arguments.plan(sources.get("train"), sources.get("eval"), settings.exact, cut)
        first = sources["train" if plan.mode == "train" else "eval"].peek()
        state, stats = self._state_for(self._program.inputs(first)), RunStats()
        if point is not None:
            state = read_state(point.path, state)
        pipeline = pipeline_of(self._program, settings, plan, sources, arrays, state, stats)
        cost = StepCost(self._program, arrays.get("train"), state, fed(first))
        handles = Handles(self.network, state, cost)
        loop = RunLoop(plan, self._program, pipeline, handles, stats)
        facts = self._facts(arguments, callbacks, loop) | {"run_id": run_id}
        facts["dataset_sink_mode"] = bool(arrays)
        things = {"network": self.network, "loss_fn": self.loss_fn, "optimizer": self.optimizer}
        config = config_of(arguments, settings, stats, self._seed, **things)
        return Execution(
            run_id,
            loop,
            callbacks,
            facts,
            self._begin,
            self._finish,
            stats,
            cut,
            config,
            incarnation,
        )

    def _begin(self, loop: RunLoop) -> None:
        if not loop.trains:
            return
        if self._training is not None:
            raise BusClosed("this trainer is training already; use a second Trainer")
        self._training = loop

    def _finish(self, loop: RunLoop, state: TrainState | None) -> None:
        if self._training is not loop:
            return
        self._training = None
        if state is not None:
            self._state = state
            self._adapted.store(state.network)

    def _state_for(self, inputs: tuple[Any, ...]) -> TrainState:
        """The state that a run begins with; inside a hook that of the run under way."""
        if self._training is not None:
            return self._training.here.state
        values = self._values(inputs)
        before = self._state
        if before is None or not same_structure(before.network.params, values.params):
            state = TrainState(values, self._program.init_optimizer(values))
        else:
            state = TrainState(values, before.optimizer)
        return TrainState(*strong(state))

    def _values(self, inputs: tuple[Any, ...]) -> Values:
        if self._state is not None and isinstance(self._adapted, FunctionalNetwork):
            return self._state.network
        return self._adapted.init(jax.random.key(self._seed), inputs)

    def _facts(self, arguments: Arguments, callbacks: list[Any], loop: RunLoop) -> dict[str, Any]:
        things = {
            "network": self.network,
            "loss_fn": self.loss_fn,
            "train_dataset": arguments.train_dataset,
            "valid_dataset": arguments.valid_dataset,
            "eval_network": None if not arguments.validates else self.eval_network or self.network,
            "list_callback": tuple(callbacks),
        }
        facts: dict[str, Any] = {"parallel_mode": "stand_alone", "device_number": 1}
        facts |= {name: live(name, it) for name, it in things.items() if it is not None}
        if arguments.valid_dataset is not None:
            loss = ("eval_loss",) if loop.trains else ()
            facts["metric_names"] = list(dict.fromkeys((*self._metrics.names, *loss)))
        if loop.trains:
            facts["epoch_num"] = arguments.epoch - arguments.initial_epoch
            facts |= loop.traced.values | loop.handles.at(loop.here)
        return facts
