"""`History`: keeps what a run measured."""

from collections.abc import Mapping
from typing import Any

from .callback import Callback
from .context import RunContext
from .outputs import loss_of


class History(Callback):
    """Keeps each epoch's last training loss and validation results by name; a participant.

    At `on_train_epoch_end`. `history["net_output"]` is the loss of the epoch's last step (MindSpore's
    name), `history[metric]` what validations found, `eval_loss` among them; `epochs[name]` are the
    epochs that the values belong to, so that the two have the same length (in MindSpore's `History`
    they have not). Each run starts anew, a resumed one goes on. Keras has the same `history`;
    Lightning has none.

    Attributes:
        history: lists of values by name.
        epochs: lists of epochs by the same names.
        epoch: `{"epoch": [1, 2, ...]}`, all epochs (MindSpore's name).
    """

    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {}
        self.epochs: dict[str, list[int]] = {}
        self.epoch: dict[str, list[int]] = {"epoch": []}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        self.history, self.epochs, self.epoch = {}, {}, {"epoch": []}

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Take down the epoch."""
        cb_params = run_context.original_args()
        epoch = cb_params.cur_epoch_num
        self.epoch["epoch"].append(epoch)
        if "net_outputs" in cb_params and cb_params.cur_batch_num:
            self._add("net_output", epoch, loss_of(cb_params.net_outputs))
        for name, value in cb_params.get("eval_results", {}).items():
            self._add(name, epoch, value)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        kept = {"history": self.history, "epochs": self.epochs, "epoch": self.epoch}
        return {name: _copied(lists) for name, lists in kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, in lists of its own."""
        self.history, self.epochs = _copied(state["history"]), _copied(state["epochs"])
        self.epoch = _copied(state["epoch"])

    def _add(self, name: str, epoch: int, value: Any) -> None:
        self.history.setdefault(name, []).append(value)
        self.epochs.setdefault(name, []).append(epoch)


def _copied(lists: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in lists.items()}
