"""`EMAWeights`: the average, the swap around a validation, and what stays when the run ends."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, EMAWeights, LambdaCallback
from railbus.trainer import RunAhead, Trainer, load_checkpoint

from .scripted import DATA, Pause, carried, make_trainer


class Weights(Callback):
    """The kernel before the run, and after each of its steps."""

    def on_train_begin(self, run_context):
        self.seen = [self._kernel(run_context)]

    def on_train_step_end(self, run_context):
        self.seen.append(self._kernel(run_context))

    def _kernel(self, run_context):
        return np.array(run_context.original_args().train_network.params["kernel"])


def averaged(kernels, decay):
    average = kernels[0]
    for kernel in kernels[1:]:
        average = decay * average + (1 - decay) * kernel
    return average


def kernel_of(trainer):
    return np.array(trainer.network.kernel[...])


@pytest.mark.parametrize(
    ("every", "start", "taken"),
    [(1, 0, range(9)), (3, 0, [0, 3, 6]), (1, 4, range(4, 9)), (3, 4, [6])],
)
def test_the_average_is_that_of_the_steps_that_count(every, start, taken):
    weights, ema, trainer = Weights(), EMAWeights(0.75, every, start), make_trainer()

    trainer.train(2, DATA, [weights, ema])

    expected = averaged([weights.seen[step] for step in taken], 0.75)
    assert np.allclose(ema.average["kernel"], expected, rtol=1e-6)
    assert np.array_equal(kernel_of(trainer), ema.average["kernel"])


@pytest.mark.parametrize("settings", [{}, {"block_steps": 3}, {"exact": False}])
def test_a_swap_is_exact_training_goes_on_as_if_there_had_been_none(settings):
    plain, swapped = (make_trainer(run_ahead=RunAhead(**settings)) for _ in range(2))

    plain.fit(3, DATA, DATA)
    result = swapped.fit(3, DATA, DATA, callbacks=EMAWeights(0.5, apply_at_end=False))

    assert np.array_equal(kernel_of(plain), kernel_of(swapped))
    assert result.status == "completed"


@pytest.mark.parametrize("exact", [True, False])
def test_a_validation_of_fit_is_that_of_the_average(exact):
    ema, averages = EMAWeights(0.5), []
    keep = LambdaCallback(on_eval_end=lambda context: averages.append(ema.average))

    result = make_trainer(run_ahead=RunAhead(exact=exact)).fit(3, DATA, DATA, callbacks=[ema, keep])

    for record, average in zip(result.history, averages, strict=True):
        trainer = make_trainer()
        nnx.update(trainer.network, nnx.State(jax.tree.map(nnx.Param, average)))
        assert record["mse"] == trainer.eval(DATA)["mse"]


def test_without_the_swap_a_validation_is_that_of_the_trained_weights():
    plain = make_trainer().fit(2, DATA, DATA)
    ema = make_trainer().fit(2, DATA, DATA, callbacks=EMAWeights(0.5, swap_for_validation=False))

    assert [one["mse"] for one in ema.history] == [one["mse"] for one in plain.history]


def test_a_validation_that_is_cut_short_gives_the_weights_back():
    plain, cut = make_trainer(), make_trainer()
    stop = LambdaCallback(on_eval_step_end=lambda context: context.request_stop())

    plain.fit(2, DATA, DATA)
    cut.fit(2, DATA, DATA, callbacks=[EMAWeights(0.5, apply_at_end=False), stop])

    assert np.array_equal(kernel_of(plain), kernel_of(cut))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("hook", ["on_eval_begin", "on_eval_step_end", "on_eval_end"])
@pytest.mark.parametrize("first", [True, False])
def test_a_validation_that_fails_gives_the_weights_back(exact, hook, first):
    """The run ended with the average."""

    def fail(run_context):
        if run_context.original_args().cur_epoch_num == 2:
            raise RuntimeError("no")

    trainer, weights = make_trainer(run_ahead=RunAhead(exact=exact)), Weights()
    callbacks = [LambdaCallback(**{hook: fail}), EMAWeights(0.5)]
    with pytest.raises(RuntimeError, match="no"):
        trainer.fit(3, DATA, DATA, callbacks=[weights, *(callbacks if first else callbacks[::-1])])

    assert np.array_equal(kernel_of(trainer), weights.seen[8])


@pytest.mark.parametrize("stops", [[], [Pause(8)]])
@pytest.mark.parametrize("exact", [True, False])
def test_a_run_that_goes_on_after_its_end_has_the_trained_weights_and_a_file_the_average(
    tmp_path, stops, exact
):
    """The checkpoint of its end held the average beside the optimizer's state of training."""

    class Saves(Callback):
        def on_train_end(self, run_context):
            run_context.save_checkpoint(tmp_path / "run.ckpt")
            run_context.save_checkpoint(tmp_path / "net.safetensors", format="safetensors")

    whole, trainer, again = (make_trainer(run_ahead=RunAhead(exact=exact)) for _ in range(3))
    whole.train(4, DATA, EMAWeights(0.5))
    first = EMAWeights(0.5)
    trainer.train(4 if stops else 2, DATA, [Saves(), first, *stops])
    again.train(4, DATA, EMAWeights(0.5), resume=tmp_path / "run.ckpt")

    assert np.array_equal(kernel_of(again), kernel_of(whole))
    file = load_checkpoint(tmp_path / "net.safetensors")["kernel"]
    assert np.array_equal(file, first.average["kernel"])


def test_a_stopped_run_ends_with_the_average():
    weights, trainer = Weights(), make_trainer()
    stop = LambdaCallback(on_train_step_end=lambda context: context.request_stop())

    trainer.train(2, DATA, [weights, EMAWeights(0.5), stop])

    assert np.allclose(kernel_of(trainer), averaged(weights.seen, 0.5), rtol=1e-6)


def test_before_its_start_nothing_is_swapped_or_left():
    plain, late = make_trainer(), make_trainer()

    first = plain.fit(2, DATA, DATA)
    second = late.fit(2, DATA, DATA, callbacks=EMAWeights(0.5, start_step=100))

    assert np.array_equal(kernel_of(plain), kernel_of(late))
    assert [one["mse"] for one in first.history] == [one["mse"] for one in second.history]


def test_small_updates_of_half_precision_weights_are_not_lost():
    network = nnx.Linear(1, 1, use_bias=False, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    trainer = Trainer(network, lambda out, y: (out - y.astype(out.dtype)).mean(), optax.sgd(1.0))
    weights, ema = Weights(), EMAWeights(0.999)
    data = [tuple(one.astype(jnp.bfloat16) for one in batch) for batch in DATA]

    trainer.train(2, data, [weights, ema])

    expected = averaged([kernel.astype(np.float32) for kernel in weights.seen], 0.999)
    assert ema.average["kernel"].dtype == jnp.float32
    assert np.allclose(ema.average["kernel"], expected, rtol=1e-6)
    assert network.kernel[...].dtype == jnp.bfloat16


def test_the_average_outlasts_a_resume():
    class Resumes(EMAWeights):
        def on_train_begin(self, run_context):
            super().on_train_begin(run_context)
            self.load_state_dict(state)

    whole, weights, trainer = EMAWeights(0.5), Weights(), make_trainer()
    make_trainer().train(2, DATA, whole)
    first = EMAWeights(0.5, apply_at_end=False)
    trainer.train(1, DATA, first)
    state = carried(first.state_dict())
    second = Resumes(0.5)
    trainer.train(2, DATA, [weights, second], initial_epoch=1)

    assert np.array_equal(second.average["kernel"], whole.average["kernel"])
    assert np.array_equal(second.average["bias"], whole.average["bias"])


def test_a_network_of_numbered_layers_has_a_state_that_a_snapshot_carries():
    layers = nnx.Sequential(*(nnx.Linear(1, 1, rngs=nnx.Rngs(k)) for k in range(2)))
    ema = EMAWeights(0.5)
    Trainer(layers, lambda out, y: (out - y).mean(), optax.sgd(0.1)).train(1, DATA, ema)

    state = ema.state_dict()
    ema.load_state_dict(carried(state))

    assert set(state["average"]["layers"]) == {"0", "1"}
    assert np.array_equal(
        ema.average["layers"][0]["kernel"], state["average"]["layers"]["0"]["kernel"]
    )


def test_a_second_run_starts_anew():
    ema, trainer = EMAWeights(0.5, apply_at_end=False), make_trainer()
    trainer.train(1, DATA, ema)
    weights = Weights()

    trainer.train(1, DATA, [weights, ema])

    assert np.allclose(ema.average["kernel"], averaged(weights.seen, 0.5), rtol=1e-6)


def test_a_lone_eval_leaves_it_alone():
    ema = EMAWeights(0.5)

    assert make_trainer().eval(DATA, ema) == make_trainer().eval(DATA)
    assert ema.average is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"decay": 0},
        {"decay": 1.0},
        {"decay": "0.9"},
        {"every": 0},
        {"start_step": -1},
        {"start_step": 1.5},
        {"swap_for_validation": 1},
        {"apply_at_end": None},
        {"unknown": 1},
    ],
)
def test_constructors_refuse_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        EMAWeights(**arguments)
