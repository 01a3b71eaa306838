"""`EMAWeights`: keeps a moving average of the weights, and validates with it."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from railbus.schemas.errors import ArgumentError
from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checks import count, flag, number
from .context import RunContext
from .weights import pack_weights, shapes_of, unpack_weights


class EMAWeights(Callback):
    """Averages the weights while they are trained: `decay * average + (1 - decay) * weights`.

    A participant. At `on_train_step_end` of every step that `every` divides, it takes the weights
    in, in one call on the device; blocks end there (see `Callback.needs`), so a small `every` slows
    small networks down. At `on_eval_begin` of `fit`'s validations the network gets the average, and
    at `on_eval_end` exactly what it had, or at `on_exception` if the run fails in between. At
    `on_train_end` the network gets the average for good, and so does a file of the network alone
    that is saved there (`format="safetensors"`); a checkpoint that can be resumed from holds the
    trained weights, and the average beside them. Averages are float32 at least; batch statistics are
    not averaged. Keras' `SwapEMAWeights`,
    Lightning's `EMAWeightAveraging`; MindSpore has none.

    Args:
        decay: how much of the average stays at each update, above 0 and below 1.
        every: steps from one update to the next.
        start_step: the average begins as the weights after the first step from here on that `every`
            divides; 0 begins with those before the first step.
        swap_for_validation: validate with the average.
        apply_at_end: leave the average in the network when the run ends without an error.

    Attributes:
        average: the averaged weights in the structure of `train_network.params`, on the device;
            None before `start_step`.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work.
    """

    def __init__(
        self,
        decay: float = 0.999,
        every: int = 1,
        start_step: int = 0,
        swap_for_validation: bool = True,
        *,
        apply_at_end: bool = True,
    ) -> None:
        self._decay = number("decay", decay)
        if not 0 < self._decay < 1:
            raise ArgumentError(f"decay must be above 0 and below 1, got {decay}")
        self._every = count("every", every, 1)
        self._start = count("start_step", start_step, 0)
        self._swaps = flag("swap_for_validation", swap_for_validation)
        self._applies = flag("apply_at_end", apply_at_end)
        self.average: Any = None
        self._trained: Any = None

    @property
    def needs(self) -> Mapping[str, int]:  # type: ignore[override]  # follows from `every`
        """The network, whenever it is averaged."""
        return {"train_network": self._every}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        params = run_context.original_args().train_network.params
        self._shapes = shapes_of(params)
        self._trained = None
        self.average = None if self._start else _begun(params)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Take the step's weights in."""
        cb_params = run_context.original_args()
        step = cb_params.cur_step_num
        if step % self._every or step < self._start:
            return
        params = cb_params.train_network.params
        if self.average is None:
            self.average = _begun(params)
        else:
            self.average = _update()(self.average, params, 1 - self._decay)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """The validation of `fit` is that of the average."""
        cb_params = run_context.original_args()
        if self._swaps and self.average is not None and "epoch_num" in cb_params:
            self._trained = cb_params.train_network.params
            self._apply(cb_params)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Training goes on with the weights that it had."""
        self._give_back(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """They are back for sure: `on_eval_end` was committed."""
        self._trained = None

    def on_train_end(self, run_context: RunContext) -> None:
        """Leave the average in the network."""
        if self._applies and self.average is not None:
            self._apply(run_context.original_args())

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """A validation that has failed leaves the trained weights, too."""
        self._give_back(run_context)

    def state_dict(self) -> dict[str, Any]:
        """The averages, as nested dicts of numpy arrays."""
        return {"average": None if self.average is None else pack_weights(self.average)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Average on from there."""
        average = state["average"]
        self.average = None if average is None else unpack_weights(average, self._shapes)

    def _give_back(self, run_context: RunContext) -> None:
        if self._trained is not None:
            run_context.original_args().train_network = self._trained

    def _apply(self, cb_params: CallbackParams) -> None:
        cb_params.train_network = _cast(self.average, self._shapes)


def _begun(params: Any) -> Any:
    """Copies of `params`, no narrower than float32, in which small updates are not lost."""
    import jax
    import jax.numpy as jnp

    def one(leaf: Any) -> Any:
        narrow = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
        return leaf.astype(jnp.float32) if narrow else jnp.copy(leaf)

    return jax.tree.map(one, params)


def _cast(average: Any, shapes: Any) -> Any:
    """`average` in the types of the parameters."""
    import jax

    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), average, shapes)


@cache
def _update() -> Any:
    """`average + share * (params - average)`, compiled; integers are taken over as they are."""
    import jax
    import jax.numpy as jnp

    def one(average: Any, leaf: Any, share: Any) -> Any:
        now = leaf.astype(average.dtype)
        moves = jnp.issubdtype(average.dtype, jnp.inexact)
        return average + share * (now - average) if moves else now

    @jax.jit
    def update(average: Any, params: Any, share: float) -> Any:
        return jax.tree.map(lambda old, new: one(old, new, share), average, params)

    return update
