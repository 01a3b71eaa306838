"""Histograms as TensorBoard has them."""

import numpy as np
import pytest

from railbus.subscribers.event_file import BINS, binned

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_a_histogram_is_numpys_but_for_values_at_an_edge(scale):
    values = (RNG.standard_normal(100_000) * scale).astype(np.float32)

    found = binned(values)

    counts, limits = np.histogram(values.astype(np.float64), BINS)
    assert found["bucket_limits"] == pytest.approx(limits.tolist())
    assert found["bucket_counts"][0] == 0 and sum(found["bucket_counts"]) == len(values)
    assert np.abs(np.cumsum(found["bucket_counts"][1:]) - np.cumsum(counts)).max() <= 2
    assert (found["min"], found["max"], found["num"]) == (values.min(), values.max(), len(values))
    assert found["sum"] == pytest.approx(values.sum(dtype=np.float64))
    assert found["sum_squares"] == pytest.approx(
        np.square(values, dtype=np.float64).sum(), rel=1e-5
    )


@pytest.mark.parametrize(
    "values", [[0], [3.5, 3.5], [1e-45, 0], [-3e38, 3e38], [1e20, 2e20], [16777216, 16777217.5]]
)
def test_values_of_any_size_are_all_counted_between_finite_limits(values):
    found = binned(np.asarray(values, np.float32))

    assert sum(found["bucket_counts"]) == len(values)
    assert len(found["bucket_limits"]) == len(found["bucket_counts"]) == BINS + 1
    assert np.isfinite(found["bucket_limits"]).all() and np.isfinite(found["sum_squares"])


def test_each_of_evenly_spread_values_has_a_bin_of_its_own():
    found = binned(np.arange(BINS, dtype=np.float32))

    assert found["bucket_counts"] == [0] + [1] * BINS
