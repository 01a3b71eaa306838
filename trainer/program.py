"""The compiled program: steps of training and evaluation, alone or in blocks, and prediction."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from railbus.schemas.errors import ArgumentError
from railbus.schemas.hooks import Mode

from .arrays import Batch, Layout
from .hyperparams import scheduled, values_of
from .metrics import MeanLoss, MetricSet
from .network import Network, Values


class TrainState(NamedTuple):
    """All that a training step changes: the network's values and the optimizer's state."""

    network: Values
    optimizer: Any


class Carry(NamedTuple):
    """All that a run carries from step to step; `evaluation` is what the metrics have added up."""

    state: TrainState
    evaluation: Any = None


class StepOutputs(NamedTuple):
    """What a training step gives: loss or `(loss, aux)`, and hyperparameters that follow a schedule."""

    net_outputs: Any
    hyperparams: dict[str, Any]


class EvalOutputs(NamedTuple):
    """What an evaluation step gives: mean loss, loss as the loss_fn gives it, outputs."""

    mean: Any
    loss: Any
    outputs: Any


class Program:
    """A network, its loss and its optimizer as compiled functions.

    Args:
        loss_fn: `loss_fn(outputs, labels)`, per example, scalar, or `(loss, aux)`; None where the
            network itself gives the loss.
        optimizer: None where nothing is trained.
    """

    def __init__(
        self,
        network: Network,
        eval_network: Network,
        loss_fn: Callable[..., Any] | None,
        optimizer: optax.GradientTransformation | None,
        metrics: MetricSet,
    ) -> None:
        self.metrics = metrics
        self._network, self._eval_network = network, eval_network
        self._loss_fn, self._optimizer = loss_fn, optimizer
        self._loss = MetricSet({"loss": MeanLoss()})
        self.buffers: dict[tuple[Mode, Layout, int], list[Any]] = {}  # of blocks that are done
        self._compiled: dict[tuple[Mode, str, bool], Any] = {}
        self._predict = jax.jit(self._predict_step)

    def init_optimizer(self, values: Values) -> Any:
        """The optimizer's state before the first step; () where there is no optimizer."""
        return () if self._optimizer is None else self._optimizer.init(values.params)

    @cached_property
    def init_evaluation(self) -> Any:
        """The metrics' state before the first batch."""
        return self.metrics.init(), self._loss.init()

    def step(self, mode: Mode, donate: bool = False) -> Any:
        """One step, compiled: `(arrays, constant, changing, batch) -> changing, outputs`.

        Training changes a `TrainState` and has no constant; evaluation changes the metrics' state,
        with the network's `Values` as constant. `arrays` hold the data set where it is on the
        device, and `batch` then its rows; None where a batch holds arrays.

        Args:
            donate: whether `changing` may be overwritten.
        """
        plain = self._train_step if mode == "train" else self._eval_step

        def step(arrays: Any, constant: Any, changing: Any, batch: Any) -> tuple[Any, Any]:
            if arrays is not None:
                batch = tuple(array[batch[0]] for array in arrays)
            return plain(constant, changing, batch)

        return self._jitted(mode, "step", step, donate)

    def block(self, mode: Mode, donate: bool) -> Any:
        """A fused block, `(arrays, constant, changing, batches, n) -> changing, outputs`.

        Batches and outputs have a leading axis of one length K; the first `n` rows count. The trip
        count is dynamic, so that one program serves every n and a block can be done again in parts,
        bit for bit (C5).

        Args:
            donate: whether `changing` may be overwritten.
        """
        step = self.step(mode)

        def block(arrays: Any, constant: Any, changing: Any, batches: Any, n: Any) -> Any:
            rows = jax.tree.leaves(batches)[0].shape[0]
            first = jax.tree.map(lambda one: one[0], batches)
            shapes = jax.eval_shape(step, arrays, constant, changing, first)[1]
            outputs = jax.tree.map(lambda one: jnp.zeros((rows, *one.shape), one.dtype), shapes)

            def body(place: Any, carried: Any) -> Any:
                changing, outputs = carried
                batch = jax.tree.map(
                    lambda one: lax.dynamic_index_in_dim(one, place, keepdims=False), batches
                )
                changing, output = step(arrays, constant, changing, batch)
                outputs = jax.tree.map(
                    lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, place, 0),
                    outputs,
                    output,
                )
                return changing, outputs

            return lax.fori_loop(0, n, body, (changing, outputs))

        return self._jitted(mode, "block", block, donate)

    def results(self, evaluation: Any) -> tuple[dict[str, Any], float]:
        """The metrics, and the mean loss over samples."""
        return self.metrics.compute(evaluation[0]), self._loss.compute(evaluation[1])["loss"]

    def predict(self, network: Values, inputs: tuple[Any, ...]) -> Any:
        """The evaluation network's outputs."""
        return self._predict(network, inputs)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """What of a batch the network takes.

        Raises:
            ArgumentError: nothing is left beside the labels.
        """
        if self._loss_fn is None:
            return tuple(batch)
        if len(batch) < 2:
            raise ArgumentError(
                "with a loss_fn a batch must hold inputs and, last, labels; got one array"
            )
        return tuple(batch[:-1])

    def _jitted(self, mode: Mode, kind: str, function: Callable[..., Any], donate: bool) -> Any:
        key = mode, kind, donate
        if key not in self._compiled:
            self._compiled[key] = jax.jit(function, donate_argnums=(2,) if donate else ())
        return self._compiled[key]

    def _losses(self, outputs: Any, batch: Batch) -> tuple[Any, Any, bool]:
        """Loss as computed, aux, and whether there is aux."""
        found = outputs if self._loss_fn is None else self._loss_fn(outputs, batch[-1])
        if isinstance(found, tuple):
            return found[0], found[1] if len(found) == 2 else found[1:], True
        return found, None, False

    def _train_step(
        self, constant: None, state: TrainState, batch: Batch
    ) -> tuple[TrainState, StepOutputs]:
        assert self._optimizer is not None
        network, optimizer = state

        def objective(params: Any) -> tuple[jax.Array, tuple[Any, Any]]:
            values = Values(params, network.rest)
            outputs, rest = self._network.apply(values, self.inputs(batch), training=True)
            loss, aux, has_aux = self._losses(outputs, batch)
            loss = jnp.mean(loss)
            return loss, (rest, (loss, aux) if has_aux else loss)

        (_, (rest, net_outputs)), grads = jax.value_and_grad(objective, has_aux=True)(
            network.params
        )
        updates, after = self._optimizer.update(grads, optimizer, network.params)
        params = optax.apply_updates(network.params, updates)
        moving = {name: values_of(after)[name] for name in scheduled(after)}
        return TrainState(Values(params, rest), after), StepOutputs(net_outputs, moving)

    def _eval_step(self, network: Values, evaluation: Any, batch: Batch) -> tuple[Any, EvalOutputs]:
        outputs, _ = self._eval_network.apply(network, self.inputs(batch), training=False)
        loss, aux, has_aux = self._losses(outputs, batch)
        if self._loss_fn is None:
            outputs = aux if has_aux else None
        labels = batch[-1]
        measured = self.metrics.update(evaluation[0], loss=loss, outputs=outputs, labels=labels)
        averaged = self._loss.update(evaluation[1], loss=loss, outputs=outputs, labels=labels)
        return (measured, averaged), EvalOutputs(jnp.mean(loss), loss, outputs)

    def _predict_step(self, network: Values, inputs: tuple[Any, ...]) -> Any:
        return self._eval_network.apply(network, inputs, training=False)[0]
