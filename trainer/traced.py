"""Values that callbacks may assign and the compiled step reads: hyperparameters, parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from railbus.schemas.errors import NotTraced, StateGone
from railbus.schemas.events import Decision
from railbus.schemas.hooks import Mode
from railbus.schemas.hyperparams import like
from railbus.schemas.params import Ledger

from .hyperparams import replace, scheduled, values_of
from .moment import Moment
from .network import Values
from .pipeline import Pipeline
from .program import Carry, TrainState
from .state import Handles, replaced_params
from .tree import shapes_of


class Traced:
    """A run's traced values, as `cb_params` shows them and as the state holds them.

    Attributes:
        values: injected hyperparameters by name, as numpy scalars.
        moved: those of them that follow a schedule: what the last step used.
    """

    def __init__(self, mode: Mode, pipeline: Pipeline, handles: Handles) -> None:
        state = pipeline.here.state
        trains = mode == "train"
        self._pipeline, self._handles = pipeline, handles
        self.values: dict[str, Any] = {}
        if trains:
            self.reset()
        self.moved: dict[str, Any] = {}
        self._scheduled = scheduled(state.optimizer) if trains else frozenset()
        self._names = frozenset({*self.values, "train_network"} if trains else ())
        self._shapes = shapes_of(state.network.params)

    def reset(self) -> None:
        """The values are those of the state."""
        found = values_of(self._pipeline.here.state.optimizer)
        self.values = {name: np.asarray(value)[()] for name, value in found.items()}

    def follow(self, hyperparams: Mapping[str, Any]) -> None:
        """What a step has used."""
        self.moved = dict(hyperparams)
        self.values |= self.moved

    def writes(self) -> dict[str, Callable[[Any], Any]]:
        """The check of an assignment in `cb_params`, by name."""
        checks: dict[str, Callable[[Any], Any]] = {}
        for name in self._names - {"train_network"}:
            checks[name] = (
                self._refusal(name) if name in self._scheduled else like(name, self.values[name])
            )
        if self._names:
            checks["train_network"] = self._check_params
        return checks

    def heed(self, decision: Decision, ledger: Ledger) -> Callable[[TrainState], TrainState] | None:
        """What a committed event's patches make of a state; None where they change nothing traced."""
        names = {name for _, patch in decision.patches for name in patch} & self._names
        if not names:
            return None
        patched = {name: ledger.params[name] for name in names}
        network = patched.pop("train_network", None)
        self.values |= patched

        def apply(state: TrainState) -> TrainState:
            params = state.network.params if network is None else network.params
            optimizer = replace(state.optimizer, patched) if patched else state.optimizer
            return TrainState(Values(params, state.network.rest), optimizer)

        return apply

    def _refusal(self, name: str) -> Callable[[Any], Any]:
        def refuse(value: Any) -> Any:
            raise NotTraced(
                f"cb_params.{name} follows a schedule, which sets it anew at every step; pass a "
                f"number to optax.inject_hyperparams to set it from callbacks"
            )

        return refuse

    def _check_params(self, value: Any) -> Any:
        params = replaced_params(self._shapes, value)
        try:
            state = self._pipeline.here.state
        except StateGone:  # the parameters are all that is known of the state they go into
            state = TrainState(Values(params, None), None)
        replaced = TrainState(Values(params, state.network.rest), state.optimizer)
        return self._handles.at(Moment(None, carry=Carry(replaced)))["train_network"]
