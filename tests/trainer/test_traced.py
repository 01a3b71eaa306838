"""Values that callbacks assign and the compiled step reads."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError, NotTraced, ReadOnlyParam
from railbus.subscribers import LambdaCallback
from railbus.trainer import RunAhead, Trainer

DATA = [(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))] * 4


def make_trainer(optimizer) -> Trainer:
    """The gradient of its loss is 1 for the kernel, so an update is the learning rate."""
    network = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: (out - y).mean(), optimizer)


def kernels(trainer, hook, step, assign) -> list[float]:
    """The kernel after each step, when `assign` is called at `hook` of `step`."""
    seen = [float(trainer.network.kernel[...][0, 0])]

    def at(run_context):
        if run_context.original_args().cur_step_num == step:
            assign(run_context.original_args())

    def after(run_context):
        seen.append(float(run_context.original_args().train_network.params["kernel"][0, 0]))

    trainer.train(1, DATA, [LambdaCallback(on_train_step_end=after), LambdaCallback(**{hook: at})])
    return seen


@pytest.mark.parametrize(("hook", "first"), [("on_train_step_begin", 2), ("on_train_step_end", 3)])
def test_a_learning_rate_applies_from_the_first_step_computed_after_the_event(hook, first):
    trainer = make_trainer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.25))

    seen = kernels(trainer, hook, 2, lambda params: setattr(params, "learning_rate", 1.0))

    updates = [before - after for before, after in zip(seen, seen[1:], strict=False)]
    assert np.allclose(updates, [0.25 if k + 1 < first else 1.0 for k in range(4)])


def test_parameters_can_be_replaced_and_a_wrong_tree_is_refused():
    trainer = make_trainer(optax.sgd(0.25))

    def assign(params):
        with pytest.raises(ValueError, match="same structure"):
            params.train_network = {"w": jnp.zeros((1, 1))}
        with pytest.raises(ValueError, match="must be float32"):
            params.train_network = {"kernel": np.zeros((2, 1), np.float32)}
        params.train_network = {"kernel": np.full((1, 1), 8, np.float32)}

    seen = kernels(trainer, "on_train_step_end", 2, assign)

    assert np.allclose(seen[3:], [7.75, 7.5])
    assert np.allclose(trainer.network.kernel[...], 7.5)


def test_handles_keep_the_state_of_their_own_event():
    handles = []
    trainer = make_trainer(optax.sgd(0.25))
    keep = LambdaCallback(
        on_train_step_end=lambda context: handles.append(context.original_args().train_network)
    )
    before = float(trainer.network.kernel[...][0, 0])
    trainer.train(1, DATA, keep)

    values = [float(handle.params["kernel"][0, 0]) for handle in handles]
    assert np.allclose(values, [before - 0.25 * (k + 1) for k in range(4)])


def test_without_injection_the_assignment_raises_and_says_how():
    def assign(params):
        assert "learning_rate" not in params
        params.learning_rate = 1.0

    with pytest.raises(NotTraced, match="inject_hyperparams"):
        kernels(make_trainer(optax.sgd(0.25)), "on_train_step_end", 1, assign)


def test_a_schedule_is_readable_at_every_step_and_refuses_assignments():
    rates = []
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    trainer = make_trainer(optax.inject_hyperparams(optax.sgd)(learning_rate=schedule))

    def assign(params):
        with pytest.raises(NotTraced, match="schedule"):
            params.learning_rate = 1.0

    read = LambdaCallback(
        on_train_step_end=lambda context: rates.append(context.original_args().learning_rate)
    )
    trainer.train(1, DATA, read)
    kernels(trainer, "on_train_step_end", 1, assign)

    assert np.allclose(rates, [1.0, 0.75, 0.5, 0.25])


def test_counters_and_results_of_the_run_are_read_only():
    def assign(params):
        for name in ("cur_step_num", "net_outputs", "epoch_num", "metrics"):
            with pytest.raises(ReadOnlyParam, match=name):
                params[name] = 1

    kernels(make_trainer(optax.sgd(0.25)), "on_train_step_end", 1, assign)


def patched(block_steps, at, assign):
    """The kernel's bytes and the log of a run in which `assign` is called at event `at`."""
    trainer = make_trainer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.25))
    trainer.run_ahead = RunAhead(block_steps=block_steps)

    def act(run_context):
        if run_context.event.seq == at:
            assign(run_context, trainer.bus.runs["run"])

    hooks = ("on_train_begin", "on_train_epoch_begin", "on_train_step_begin", "on_train_step_end")
    trainer.train(2, DATA, LambdaCallback(**dict.fromkeys(hooks, act)), run_id="run")
    log = trainer.bus.runs["run"].entries()
    trained = np.asarray(trainer.network.kernel[...]).tobytes()
    return trained, [entry.event.snapshot for entry in log], log[at].decision.patches


@pytest.mark.parametrize("at", [0, 1, 2, 5, 11])
@pytest.mark.parametrize("block_steps", [1, 3])
def test_a_patch_from_outside_is_a_participants_patch_to_the_same_event(block_steps, at):
    inside = patched(
        block_steps,
        at,
        lambda context, log: setattr(context.original_args(), "learning_rate", 0.1),
    )
    outside = patched(
        block_steps, at, lambda context, log: log.control.patch("learning_rate", 0.1, by="ops")
    )
    untouched = patched(block_steps, at, lambda context, log: None)

    assert outside[:2] == inside[:2] != untouched[:2]
    (by, patch), (inside_by, inside_patch) = outside[2][0], inside[2][0]
    assert (by, patch) == ("ops", inside_patch) and inside_by == "LambdaCallback"


def test_from_outside_only_numbers_that_the_step_reads_can_be_set():
    def act(context, log):
        for name, value, error in (
            ("cur_step_num", 1, ReadOnlyParam),
            ("train_network", 1, NotTraced),
            ("momentum", 1, NotTraced),
            ("note", 1, NotTraced),
            ("learning_rate", float("nan"), ArgumentError),
            ("learning_rate", 1e300, ArgumentError),
            ("learning_rate", "fast", ArgumentError),
            ("learning_rate", [1.0], ArgumentError),
        ):
            with pytest.raises(error):
                log.control.patch(name, value, by="ops")

    _, _, patches = patched(1, 2, act)

    assert not patches
