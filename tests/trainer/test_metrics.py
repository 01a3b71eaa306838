from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings, strategies as st

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.trainer.metrics import MeanLoss, MetricSet

NAMES = ["loss", "accuracy", "top_2_accuracy", "mae", "mse"]


def measured(metrics: MetricSet, found: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The results over batches of (loss, outputs, labels), updated inside jit."""

    @jax.jit
    def update(state, loss, outputs, labels):
        return metrics.update(state, loss=loss, outputs=outputs, labels=labels)

    state = metrics.init()
    for batch in found:
        state = update(state, *batch)
    return metrics.compute(state)


def one(name: str, outputs: Any, labels: Any) -> Any:
    """One metric over one batch."""
    return measured(MetricSet.of([name]), [(np.float32(0), outputs, labels)])[name]


def split(size: int, *arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    starts = range(0, len(arrays[0]), size)
    return [tuple(array[start : start + size] for array in arrays) for start in starts]


class Collect:
    """A host metric: it keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def reset(self) -> None:
        self.seen = []

    def update(self, **given: Any) -> None:
        self.seen.append(given)

    def compute(self) -> int:
        return len(self.seen)


class Largest(nnx.metrics.Metric):
    """A device metric that takes one keyword, and whose result is no scalar."""

    def __init__(self) -> None:
        self.value = nnx.metrics.MetricState(jnp.zeros(2))

    def reset(self) -> None:
        self.value[...] = jnp.zeros(2)

    def update(self, logits):  # type: ignore[override]  # what the test is about
        self.value[...] = jnp.maximum(self.value[...], logits.max(axis=0))

    def compute(self):
        return self.value[...]


# Values


@settings(max_examples=30)
@given(
    samples=st.integers(1, 20),
    batch_size=st.integers(1, 8),
    labels_dtype=st.sampled_from([np.int32, np.int64, np.uint8, np.uint32]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    per_example=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_classification_equals_the_numpy_reference(
    samples, batch_size, labels_dtype, dtype, per_example, seed
):
    random = np.random.default_rng(seed)
    outputs = np.asarray(random.permuted(np.tile(np.arange(4.0), (samples, 1)), axis=1), dtype)
    labels = random.integers(0, 4, samples).astype(labels_dtype)
    losses = random.integers(0, 64, samples).astype(dtype)
    found = [
        (loss if per_example else loss.astype(np.float32).mean(dtype=np.float32), *rest)
        for loss, *rest in split(batch_size, losses, outputs, labels)
    ]

    results = measured(MetricSet.of(["loss", "accuracy", "top_2_accuracy"]), found)

    place = (outputs > outputs[np.arange(samples), labels.astype(int)][:, None]).sum(axis=1)
    assert results["accuracy"] == pytest.approx((place < 1).mean(), rel=1e-6)
    assert results["top_2_accuracy"] == pytest.approx((place < 2).mean(), rel=1e-6)
    assert results["loss"] == pytest.approx(losses.astype(np.float64).mean(), rel=1e-6)


@settings(max_examples=20)
@given(
    samples=st.integers(1, 20),
    batch_size=st.integers(1, 8),
    width=st.sampled_from([(), (1,), (3, 2)]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    labels_dtype=st.sampled_from([np.float32, np.int32, np.uint8]),
    seed=st.integers(0, 1000),
)
def test_mae_and_mse_equal_the_numpy_reference(
    samples, batch_size, width, dtype, labels_dtype, seed
):
    random = np.random.default_rng(seed)
    outputs = random.integers(-20, 20, (samples, *width)).astype(dtype)
    labels = random.integers(0, 20, (samples, *width)).astype(labels_dtype)
    found = [(np.float32(0), *batch) for batch in split(batch_size, outputs, labels)]

    results = measured(MetricSet.of(["mae", "mse"]), found)

    difference = outputs.astype(np.float64) - labels.astype(np.float64)
    assert results["mae"] == pytest.approx(np.abs(difference).mean(), rel=1e-6)
    assert results["mse"] == pytest.approx(np.square(difference).mean(), rel=1e-6)


def test_the_loss_weighs_a_partial_batch_by_its_samples():
    found = [
        (np.float32(1.0), np.zeros((4, 2), np.float32), np.zeros(4, np.int32)),
        (np.float32(6.0), np.zeros((1, 2), np.float32), np.zeros(1, np.int32)),
    ]

    assert measured(MetricSet.of(["loss"]), found) == {"loss": 2.0}


def test_a_loss_per_pixel_counts_every_pixel():
    labels = np.zeros(2, np.int32)
    found = [(np.ones((2, 3), np.float32), None, labels), (np.full((2, 1), 5.0), None, labels)]

    assert measured(MetricSet.of(["loss"]), found) == {"loss": 2.0}


def test_the_loss_counts_samples_by_any_labels():
    several = {"mask": np.zeros((3, 2), np.int32), "scale": np.float32(1)}
    found = [(np.float32(1), None, several), (np.float32(5), None, None)]

    assert measured(MetricSet.of(["loss"]), found) == {"loss": 2.0}


def test_a_mean_stays_exact_over_many_batches():
    metrics = MetricSet({"loss": MeanLoss()})
    labels = jnp.zeros((1,))

    def body(_: Any, state: Any) -> Any:
        return metrics.update(state, loss=jnp.float32(0.1), outputs=None, labels=labels)

    state = jax.jit(lambda state: jax.lax.fori_loop(0, 300_000, body, state))(metrics.init())

    assert metrics.compute(state)["loss"] == pytest.approx(0.1, rel=2e-7)


@pytest.mark.parametrize("loss", [np.inf, -np.inf, np.nan])
def test_a_mean_over_an_infinite_loss_shows_it(loss):
    labels = np.zeros(2, np.int32)
    found = [(np.float32(one), None, labels) for one in (1.0, loss, 2.0)]

    result = measured(MetricSet.of(["loss"]), found)["loss"]

    assert result == loss or np.isnan(result) and np.isnan(loss)


def test_accuracy_takes_one_hot_and_per_pixel_labels():
    classes = np.array([[0, 2], [1, 1]])
    outputs = np.eye(3, dtype=np.float32)[classes]
    wrong = np.array([[0, 2], [1, 0]])

    assert one("accuracy", outputs, wrong) == 0.75
    assert one("accuracy", outputs, np.eye(3, dtype=np.float32)[wrong]) == 0.75
    assert one("top_2_accuracy", outputs, np.eye(3, dtype=np.float32)[wrong]) == 1.0


def test_accuracy_takes_bool_labels_of_two_classes():
    outputs = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)

    assert one("accuracy", outputs, np.array([True, True])) == 0.5


def test_results_are_floats():
    found = [(np.float32(1), np.ones((2, 3), jnp.bfloat16), np.zeros(2, np.int32))]

    results = measured(MetricSet.of(["loss", "accuracy", "top_1_accuracy"]), found)

    assert [type(value) for value in results.values()] == [float] * 3


# Shapes that do not go together


@pytest.mark.parametrize("name", ["mae", "mse"])
def test_errors_do_not_broadcast(name):
    with pytest.raises(ArgumentError, match=f"{name} .* outputs \\(4, 1\\) and labels \\(4,\\)"):
        one(name, np.ones((4, 1), np.float32), np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "words"),
    [
        ("accuracy", (4, 3), np.zeros((4, 1), np.int32), "\\(4, 3\\) needs .* int32 \\(4, 1\\)"),
        ("accuracy", (4, 3), np.zeros(4, np.float32), "integer labels .* float32 \\(4,\\)"),
        ("accuracy", (4,), np.zeros(4, np.int32), "at least 2 classes.*Accuracy\\(threshold"),
        ("accuracy", (4, 1), np.zeros((4, 1), np.int32), "at least 2 classes"),
        ("top_5_accuracy", (4, 3), np.zeros(4, np.int32), "top_5_accuracy .* at least 5 classes"),
    ],
)
def test_accuracy_names_the_shapes_that_it_cannot_take(name, outputs, labels, words):
    with pytest.raises(ArgumentError, match=words):
        one(name, np.zeros(outputs, np.float32), labels)


@pytest.mark.parametrize("name", ["accuracy", "mae"])
def test_several_outputs_are_refused_by_name(name):
    outputs = (np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))

    with pytest.raises(ArgumentTypeError, match=f"{name} needs one array of outputs, got a tuple"):
        one(name, outputs, np.zeros(2, np.int32))


# Which metrics


@pytest.mark.parametrize("given", [None, [], set(), {}])
def test_no_metrics_are_an_empty_set(given):
    metrics = MetricSet.of(given)

    assert metrics.names == () and not metrics.on_host
    assert metrics.compute(metrics.init()) == {}


def test_names_keep_their_order_and_sets_are_sorted():
    host = {"b": Collect(), "a": MeanLoss(), "c": Collect()}
    metrics = MetricSet.of(host)
    state = metrics.update(metrics.init(), loss=jnp.float32(1), outputs=None, labels=jnp.zeros(1))

    assert MetricSet.of(["mse", "MAE", "loss"]).names == ("mse", "MAE", "loss")
    assert MetricSet.of(("top_3_accuracy", "accuracy")).names == ("top_3_accuracy", "accuracy")
    assert MetricSet.of(set(NAMES)).names == tuple(sorted(NAMES))
    assert list(metrics.compute(state)) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("acuracy", "'acuracy', expected one of accuracy, loss, mae, mse, top_<k>_accuracy"),
        ("acuracy", "did you mean 'accuracy'"),
        ("top_0_accuracy", "did you mean 'top_<k>_accuracy'"),
        ("zzz", "top_<k>_accuracy$"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(name, words):
    with pytest.raises(ArgumentError, match=words):
        MetricSet.of({name})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("accuracy", "must be names.*got 'accuracy'"),
        (5, "must be names.*got 5"),
        ([3], "name must be a str, got 3"),
        ({3: MeanLoss()}, "name must be a str, got 3"),
        ({"x": "accuracy"}, "'x' must have .* without reset, update, compute; names go into a set"),
        ({"x": MeanLoss}, "'x' is the class MeanLoss, expected an object: MeanLoss\\(\\)"),
    ],
)
def test_what_is_no_metric_is_refused(given, words):
    with pytest.raises(ArgumentTypeError, match=words):
        MetricSet.of(given)


def test_an_object_without_the_interface_is_told_what_it_lacks():
    class MindSpores:
        def clear(self) -> None: ...
        def update(self, *inputs: Any) -> None: ...
        def eval(self) -> float:
            return 0.0

    with pytest.raises(ArgumentTypeError, match="without reset, compute$"):
        MetricSet.of({"x": MindSpores()})


def test_an_update_that_needs_something_else_is_refused_at_once():
    class Needs(Collect):
        def update(self, predictions: Any, labels: Any) -> None: ...  # type: ignore[override]

    class Positional(Collect):
        def update(self, logits: Any, /) -> None: ...  # type: ignore[override]

    with pytest.raises(ArgumentTypeError, match="'x' has an update that needs 'predictions'"):
        MetricSet.of({"x": Needs()})
    with pytest.raises(ArgumentTypeError, match="'x' has an update that needs 'logits'"):
        MetricSet.of({"x": Positional()})


# Objects of the user


def test_flax_metrics_run_on_the_device_under_strict_promotion():
    metrics = MetricSet.of(
        {
            "average": nnx.metrics.Average(),
            "accuracy": nnx.metrics.Accuracy(),
            "spread": nnx.metrics.Welford(),
            "both": nnx.MultiMetric(a=nnx.metrics.Accuracy(), b=nnx.metrics.Average()),
        }
    )
    outputs = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    found = [(np.float32(loss), outputs, np.ones(2, np.int32)) for loss in (1, 3)]

    results = measured(metrics, found)

    assert not metrics.on_host
    assert results["average"] == 2.0 and results["accuracy"] == 0.5
    assert results["spread"]["mean"] == 2.0 and results["spread"]["standard_deviation"] == 1.0
    assert results["both"] == {"a": 0.5, "b": 2.0}


def test_the_users_metric_is_neither_changed_nor_traced():
    mine = nnx.metrics.Average()
    mine.update(values=jnp.array([7.0]))
    metrics = MetricSet.of({"mine": mine})

    assert measured(metrics, [(np.float32(1), None, None)] * 2) == {"mine": 1.0}
    assert float(mine.total[...]) == 7.0 and int(mine.count[...]) == 1


def test_an_update_leaves_the_state_before_it_as_it_was():
    metrics = MetricSet.of({"average": nnx.metrics.Average(), "loss": MeanLoss()})
    before = metrics.init()
    labels = jnp.zeros(1)
    first = metrics.update(before, loss=jnp.float32(2), outputs=None, labels=labels)

    other = metrics.update(before, loss=jnp.float32(4), outputs=None, labels=labels)
    metrics.compute(first)

    assert metrics.compute(first) == {"average": 2.0, "loss": 2.0}
    assert metrics.compute(other) == {"average": 4.0, "loss": 4.0}


def test_init_starts_anew_even_after_a_donated_state():
    metrics = MetricSet.of(["loss"])
    update = jax.jit(
        lambda state, loss: metrics.update(state, loss=loss, outputs=None, labels=jnp.zeros(1)),
        donate_argnums=0,
    )
    for loss in (1.0, 3.0):
        state = update(metrics.init(), jnp.float32(loss))

        assert metrics.compute(state) == {"loss": loss}


def test_a_metric_gets_the_keywords_that_it_takes():
    class Some(Collect):
        def update(self, *, labels: Any, extra: Any = None) -> None:  # type: ignore[override]
            self.seen.append({"labels": labels})

    some, all_of_them = Some(), Collect()
    metrics = MetricSet.of({"largest": Largest(), "some": some, "all": all_of_them})
    outputs = np.array([[1.0, 0.0], [0.0, 5.0]], np.float32)

    state = metrics.update(metrics.init(), loss=1, outputs=jnp.asarray(outputs), labels=None)
    metrics.update_host(1.5, outputs, "labels")

    assert metrics.compute(state)["largest"].tolist() == [1.0, 5.0]
    assert some.seen == [{"labels": "labels"}]
    assert all_of_them.seen == [{"values": 1.5, "logits": outputs, "labels": "labels"}]


def test_results_that_are_no_scalars_stay_numpy_arrays():
    metrics = MetricSet.of({"largest": Largest()})

    found = [(np.float32(0), np.ones((3, 2), np.float32), None)]

    assert isinstance(measured(metrics, found)["largest"], np.ndarray)


def test_host_metrics_are_used_as_they_are_and_reset_by_each_evaluation():
    mine = Collect()
    metrics = MetricSet.of({"mine": mine})

    for batches in (2, 3):
        state = metrics.init()
        metrics.reset()
        for _ in range(batches):
            metrics.update_host(np.float32(0), np.zeros(1), np.zeros(1))
        assert metrics.on_host
        assert metrics.compute(state) == {"mine": float(batches)}
        assert len(mine.seen) == batches


def test_state_outside_of_variables_is_refused_instead_of_lost():
    class Counts(nnx.metrics.Metric):
        def __init__(self) -> None:
            self.batches = 0

        def reset(self) -> None:
            self.batches = 0

        def update(self, **_: Any) -> None:
            self.batches += 1

        def compute(self):
            return self.batches

    with pytest.raises(ArgumentError, match="'counts' changes attributes .* no nnx.Variable"):
        measured(MetricSet.of({"counts": Counts()}), [(np.float32(0), None, None)])


def test_metrics_are_traced_in_the_order_of_their_names():
    traced = []

    class Named(MeanLoss):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def update(self, **given: Any) -> None:
            traced.append(self.name)

    names = ["f", "b", "d", "a", "e", "c", "g"]
    measured(MetricSet.of({name: Named(name) for name in names}), [(np.float32(0), None, None)])

    assert traced == names
