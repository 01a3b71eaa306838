"""The arrays of a snapshot, and the bytes of arrays and numpy scalars."""

import struct
from typing import Any, Self, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# A dtype's place is on the wire: new ones go to the end.
DTYPES: tuple[np.dtype[Any], ...] = (
    *map(np.dtype, "? i1 <i2 <i4 <i8 u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split()),
    np.dtype(ml_dtypes.bfloat16),
)
_PLACES = {dtype: place for place, dtype in enumerate(DTYPES)}


class Tensor(np.ndarray[Any, np.dtype[Any]]):
    """A read-only array with `asnumpy()`, as MindSpore's tensors have it.

    Arithmetic, comparisons and reductions give what they give for a plain array: a plain array, or
    a numpy scalar. Indexing and slicing give read-only views, `copy` gives an array to write to.
    """

    @classmethod
    def of(cls, array: Any) -> Self:
        """A view of `array`, in C order and native byte order; copied only where it is not.

        Whoever keeps `array` and writes to it changes the view as well.
        """
        dtype = np.dtype(array.dtype).newbyteorder("=")
        view = np.asarray(array, dtype, order="C").view(cls)
        view.flags.writeable = False
        return view

    def asnumpy(self) -> Array:
        """The same numbers as a plain array: a view, so read-only too."""
        return self.view(np.ndarray)

    def __array_wrap__(
        self, array: Any, context: object = None, return_scalar: bool = False
    ) -> Any:
        return array[()] if return_scalar else array


def pack_tensor(array: Array) -> bytes:
    """The elements, each dimension as uint32, the dtype's place in `DTYPES`, the dimensions' number.

    Elements are little-endian and in C order, and come first, so that they are aligned when the
    payload is viewed in place.

    Raises:
        TypeError: for a dtype that is not in `DTYPES`.
        struct.error: for a dimension of 2**32 or more (of an empty array).
    """
    place, elements = _elements(array)
    ndim = array.ndim
    dims = struct.pack(f"<{ndim}I", *array.shape) if ndim else b""
    return elements + dims + bytes((place, ndim))


def tensor_tail(array: Array) -> int:
    """How many bytes of `pack_tensor(array)` follow the elements."""
    return 4 * array.ndim + 2


def unpack_tensor(data: bytes) -> Tensor:
    """A view of `data`.

    Raises:
        ValueError, TypeError: for anything that `pack_tensor` does not make.
    """
    dtype, ndim = _dtype(data[-2:-1]), data[-1]
    end = len(data) - 2 - 4 * ndim
    if end < 0:
        raise ValueError(f"an array of {ndim} dimensions is cut short")
    shape = struct.unpack_from(f"<{ndim}I", data, end) if ndim else ()
    tensor = Tensor(shape, dtype, data)
    if tensor.nbytes != end:
        raise ValueError(f"an array of {tensor.nbytes} bytes has {end}")
    # Of bool elements numpy trusts that they are 0 or 1.
    return Tensor.of(tensor.view(np.uint8) != 0) if dtype.kind == "b" else tensor


def pack_scalar(scalar: "np.generic[Any]") -> bytes:
    """The element, little-endian, and the dtype's place in `DTYPES`.

    Raises:
        TypeError: for a dtype that is not in `DTYPES`.
    """
    place, element = _elements(np.asarray(scalar))
    return element + bytes((place,))


def unpack_scalar(data: bytes) -> "np.generic[Any]":
    """The numpy scalar, of the same dtype.

    Raises:
        ValueError: for anything that `pack_scalar` does not make.
    """
    dtype = _dtype(data[-1:])
    if len(data) != dtype.itemsize + 1:
        raise ValueError(f"a {dtype} scalar has {len(data) - 1} bytes")
    scalar: np.generic[Any] = np.frombuffer(data, dtype, 1)[0]
    return scalar


def _elements(array: Array) -> tuple[int, bytes]:
    place = _PLACES.get(array.dtype)
    if place is None:
        dtype = array.dtype.newbyteorder("<")
        place = _PLACES.get(dtype)
        if place is None:
            raise TypeError(f"its dtype must be one of {', '.join(map(str, DTYPES))}")
        array = array.astype(dtype)
    return place, array.tobytes()


def _dtype(place: bytes) -> np.dtype[Any]:
    if not place or place[0] >= len(DTYPES):
        raise ValueError(f"dtype {place!r} is unknown")
    return DTYPES[place[0]]
