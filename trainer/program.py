"""The compiled program: training steps in blocks, evaluation steps, prediction (DESIGN section 5)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from railbus.schemas.errors import ArgumentError

from .batches import Batch
from .hyperparams import scheduled, values_of
from .metrics import MeanLoss, MetricSet
from .network import Network, Values


class TrainState(NamedTuple):
    """All that a training step changes: the network's values and the optimizer's state."""

    network: Values
    optimizer: Any


class StepOutputs(NamedTuple):
    """What a training step gives: loss or `(loss, aux)`, and hyperparameters that follow a schedule."""

    net_outputs: Any
    hyperparams: dict[str, Any]


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
        self._train = jax.jit(self._train_step)
        self._evaluate = jax.jit(self._eval_step)
        self._predict = jax.jit(self._predict_step)

    def init_optimizer(self, values: Values) -> Any:
        """The optimizer's state before the first step; () where there is no optimizer."""
        return () if self._optimizer is None else self._optimizer.init(values.params)

    def run(
        self, state: TrainState, batches: Sequence[Batch], n: int
    ) -> tuple[TrainState, list[StepOutputs]]:
        """A dispatched block: `n` asynchronous calls of one compiled step.

        Outputs stay on the device; `state` stays valid, so that the block can be run again.
        """
        outputs = []
        for batch in batches[:n]:
            state, output = self._train(state, batch)
            outputs.append(output)
        return state, outputs

    def init_evaluation(self) -> Any:
        """The metrics' state before the first batch."""
        return self.metrics.init(), self._loss.init()

    def evaluate(self, network: Values, batch: Batch, state: Any) -> tuple[Any, Any, Any, Any]:
        """One batch: mean loss, loss as the loss_fn gives it, outputs, the metrics' state after it."""
        found: tuple[Any, Any, Any, Any] = self._evaluate(network, batch, state)
        return found

    def results(self, state: Any) -> tuple[dict[str, Any], float]:
        """The metrics, and the mean loss over samples."""
        return self.metrics.compute(state[0]), self._loss.compute(state[1])["loss"]

    def predict(self, network: Values, inputs: tuple[Any, ...]) -> Any:
        """The evaluation network's outputs."""
        return self._predict(network, inputs)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """What of a batch the network takes.

        Raises:
            ArgumentError: nothing is left beside the labels.
        """
        if self._loss_fn is None:
            return batch
        if len(batch) < 2:
            raise ArgumentError(
                "with a loss_fn a batch must hold inputs and, last, labels; got one array"
            )
        return batch[:-1]

    def _losses(self, outputs: Any, batch: Batch) -> tuple[Any, Any, bool]:
        """Loss as computed, aux, and whether there is aux."""
        found = outputs if self._loss_fn is None else self._loss_fn(outputs, batch[-1])
        if isinstance(found, tuple):
            return found[0], found[1] if len(found) == 2 else found[1:], True
        return found, None, False

    def _train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepOutputs]:
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

    def _eval_step(self, network: Values, batch: Batch, state: Any) -> tuple[Any, ...]:
        outputs, _ = self._eval_network.apply(network, self.inputs(batch), training=False)
        loss, aux, has_aux = self._losses(outputs, batch)
        if self._loss_fn is None:
            outputs = aux if has_aux else None
        labels = batch[-1]
        measured = self.metrics.update(state[0], loss=loss, outputs=outputs, labels=labels)
        averaged = self._loss.update(state[1], loss=loss, outputs=outputs, labels=labels)
        return jnp.mean(loss), loss, outputs, (measured, averaged)

    def _predict_step(self, network: Values, inputs: tuple[Any, ...]) -> Any:
        return self._eval_network.apply(network, inputs, training=False)[0]
