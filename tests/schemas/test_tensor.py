import copy
import struct

import ml_dtypes
import numpy as np
import pytest

from railbus.schemas.tensor import DTYPES, Tensor, pack_tensor, unpack_scalar, unpack_tensor

LOSS = Tensor.of(np.asarray(np.float32(0.5)))
ROWS = Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3))


def test_a_scalar_behaves_as_a_number():
    assert float(LOSS) == 0.5 and f"{LOSS:.3f}" == "0.500" and round(float(LOSS), 1) == 0.5
    assert LOSS < 1 and not LOSS > 1 and LOSS == 0.5
    assert isinstance(LOSS + 1, np.float32) and isinstance(-LOSS, np.float32)


def test_arithmetic_and_reductions_give_what_they_give_for_a_plain_array():
    plain = ROWS.asnumpy()
    for compute in (
        lambda x: x.mean(),
        lambda x: x.mean(axis=0),
        lambda x: np.exp(x),
        lambda x: x < 3,
        lambda x: (x < 3).any(),
        lambda x: x @ x.T,
        lambda x: x.argmax(),
        lambda x: x[0, 1],
    ):
        got, expected = compute(ROWS), compute(plain)
        assert type(got) is type(expected)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[0], lambda x: x.T, Tensor.asnumpy])
def test_a_tensor_and_its_views_are_read_only(view):
    with pytest.raises(ValueError, match="read-only"):
        view(ROWS)[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        view(unpack_tensor(pack_tensor(ROWS))).flags.writeable = True


def test_asnumpy_gives_a_plain_view():
    plain = ROWS.asnumpy()

    assert type(plain) is np.ndarray and np.shares_memory(plain, ROWS)


def test_a_copy_can_be_written_to():
    for changed in (ROWS.copy(), copy.copy(ROWS), copy.deepcopy(ROWS)):
        changed += 1
        assert changed[0, 0] == 1 and ROWS[0, 0] == 0


def test_repr_and_str_say_what_it_is():
    assert repr(LOSS) == "Tensor(0.5, dtype=float32)" and str(LOSS) == "0.5"
    assert repr(Tensor.of(np.asarray([1, 2]))) == "Tensor([1, 2])"
    assert repr(Tensor.of(np.ones(1, ml_dtypes.bfloat16))) == "Tensor([1], dtype=bfloat16)"


def test_of_does_not_copy_what_lies_right_already():
    array = np.zeros((2, 3), np.float32)

    assert np.shares_memory(Tensor.of(array), array)
    assert array.flags.writeable


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3).T, np.arange(6, dtype=">i4"), np.asarray(1.5, ">f2")]
)
def test_of_brings_others_into_c_order_and_native_byte_order(array):
    tensor = Tensor.of(array)

    assert tensor.flags.c_contiguous and tensor.dtype.isnative and tensor.shape == array.shape
    np.testing.assert_array_equal(tensor, array)


def test_a_tensor_views_the_bytes_it_came_in_and_is_aligned():
    data = pack_tensor(np.arange(3.0))

    tensor = unpack_tensor(data)

    assert tensor.flags.aligned and np.shares_memory(tensor, np.frombuffer(data, np.uint8))


def test_the_places_of_the_dtypes_never_change():
    names = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64
        float16 float32 float64 complex64 complex128 bfloat16""".split()

    assert [dtype.name for dtype in DTYPES] == names
    assert pack_tensor(np.ones((1, 2), ">u2")) == b"\1\0\1\0" + struct.pack("<II", 1, 2) + b"\6\2"


def test_bool_elements_are_0_or_1_whatever_came():
    tensor = unpack_tensor(b"\0\1\2\xff" + struct.pack("<I", 4) + b"\0\1")

    assert tensor.tobytes() == b"\0\1\1\1" and not tensor.flags.writeable
    assert unpack_scalar(b"\2\0").tobytes() == b"\1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\0\0\0\x0f\0",  # no such dtype
        b"\0\0\x0a\1",  # no room for the dimension
        b"\0\0\0\0\x0a\xff",
        b"\0" * 8 + b"\x0a\0",  # one element too many
        b"\0" * 4 + struct.pack("<I", 2) + b"\x0a\1",  # one too few
        struct.pack("<III", 2**31, 2**31, 4) + b"\x0a\3",  # a product that wraps to 0
        struct.pack("<III", 0, 2**32 - 1, 2**32 - 1) + b"\x0a\3",
        b"\0" * 4 + struct.pack("<65I", *[1] * 65) + b"\x0a\x41",  # numpy has at most 64 dimensions
    ],
)
def test_bytes_that_are_no_tensor_are_refused(data):
    with pytest.raises((ValueError, TypeError)):
        unpack_tensor(data)


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\0\0\0\x0a", b"\0" * 5 + b"\x0a", b"\0\x0f"])
def test_bytes_that_are_no_scalar_are_refused(data):
    with pytest.raises(ValueError):
        unpack_scalar(data)
