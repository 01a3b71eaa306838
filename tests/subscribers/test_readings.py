"""Values as callbacks report them."""

import ml_dtypes
import numpy as np
import pytest

from railbus.schemas.tensor import Tensor
from railbus.subscribers.readings import plain, short


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (25993.6, "25994"), (1e9, "1e+09"), (np.nan, "nan"), (4, "4")],
)
def test_numbers_are_short_as_people_read_them(value, text):
    assert short(value) == text


def test_arrays_become_numbers_and_lists_that_any_format_carries():
    given = {"a": np.float32(0.5), "b": (np.arange(2).view(Tensor), None), 3: ml_dtypes.bfloat16(2)}

    assert plain(given) == {"a": 0.5, "b": [[0, 1], None], "3": 2.0}
    assert [type(value) for value in plain(given).values()] == [float, list, float]
