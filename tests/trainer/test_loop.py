"""What the run loop puts into `cb_params`, and what becomes of the data."""

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, LambdaCallback
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(6)]


def make_trainer() -> Trainer:
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optax.sgd(0.01), {"mse"})


def test_outputs_and_results_are_there_when_mindspore_has_them():
    seen = {}

    def look(run_context):
        params = run_context.original_args()
        names = [name for name in ("net_outputs", "metrics", "eval_results") if name in params]
        seen.setdefault(run_context.event.hook.value, (names, params.get("net_outputs")))

    hooks = "train_begin train_step_begin train_step_end eval_begin eval_step_end eval_epoch_end"
    hooks += " eval_end train_epoch_end train_end"
    callback = LambdaCallback(**{f"on_{hook}": look for hook in hooks.split()})
    make_trainer().fit(1, DATA[:1], DATA[:1], callbacks=callback)

    assert {hook: names for hook, (names, _) in seen.items()} == {
        "on_train_begin": [],
        "on_train_step_begin": [],
        "on_train_step_end": ["net_outputs"],
        "on_eval_begin": ["net_outputs"],
        "on_eval_step_end": ["net_outputs"],
        "on_eval_epoch_end": ["net_outputs"],
        "on_eval_end": ["net_outputs", "metrics", "eval_results"],
        "on_train_epoch_end": ["net_outputs", "metrics", "eval_results"],
        "on_train_end": ["net_outputs"],
    }
    loss = seen["on_train_step_end"][1]
    assert seen["on_eval_begin"][1] == loss == seen["on_train_epoch_end"][1]
    assert [np.shape(one) for one in seen["on_eval_step_end"][1]] == [(), (2, 1), (2, 1)]


@pytest.mark.parametrize(
    ("hook", "ending", "trained"),
    [
        ("on_train_begin", "stop", []),
        ("on_train_step_begin", "stop", [0, 1, 2]),
        ("on_train_step_end", "stop", [0, 1, 2]),
        ("on_train_step_begin", "raise", [0, 1]),
        ("on_train_step_end", "raise", [0, 1]),
    ],
)
def test_an_iterator_loses_no_batch_and_delivers_none_twice_over_two_runs(hook, ending, trained):
    first, second = [], []

    class Ends(Callback):
        def on_train_begin(self, run_context):
            self.at(run_context, "on_train_begin")

        def on_train_step_begin(self, run_context):
            self.at(run_context, "on_train_step_begin")

        def on_train_step_end(self, run_context):
            self.at(run_context, "on_train_step_end")
            first.append(int(run_context.original_args().train_dataset_element[0][0, 0]))

        def at(self, run_context, here):
            step = 0 if hook == "on_train_begin" else 3
            if here == hook and run_context.original_args().cur_step_num == step:
                if ending == "raise":
                    raise LookupError("ends")
                run_context.request_stop()

    def keep(run_context):
        second.append(int(run_context.original_args().train_dataset_element[0][0, 0]))

    data, trainer = iter(DATA), make_trainer()
    try:
        trainer.train(1, data, Ends())
    except LookupError:
        pass
    trainer.train(1, data, LambdaCallback(on_train_step_end=keep))

    assert first == trained
    assert first + second == [0, 1, 2, 3, 4, 5]
