"""Outputs of a block's steps as callbacks see them: small arrays by value, large ones by handle."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from railbus.schemas.codec import Reference, entry, join, pack, pack_list, pack_rows
from railbus.schemas.errors import ArgumentTypeError
from railbus.schemas.params import Live
from railbus.schemas.tensor import Tensor

from .arrays import read_only

LARGE_STACK = 2**20  # bytes; whoever keeps one row of it must not keep all of it
INLINE_BYTES = 64 * 2**10  # larger arrays are in a snapshot by reference


class ArrayHandle:
    """An array that stays where it is until somebody asks for its values.

    Args:
        read: gives it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, read: Callable[[], Any]) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._read = read

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The values, copied from the device."""
        return np.asarray(self._read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._read(), dtype)

    def __jax_array__(self) -> Any:
        return jnp.asarray(self._read())

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<array {self.dtype}{list(self.shape)}>"


class Column(NamedTuple):
    """One value per step, as callbacks get it and as a snapshot holds it."""

    values: Sequence[Any]
    packed: Sequence[bytes]

    def live(self, place: int) -> Live:
        """That of one step."""
        return Live(self.values[place], self.packed[place])


class Stack:
    """One array per step of a block: the first rows of one array, or arrays of their own."""

    def __init__(self, arrays: Any, count: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._arrays, self._count = arrays, count
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize

    @classmethod
    def rows(cls, array: Any, count: int) -> "Stack":
        """The first `count` rows of `array`."""
        return cls(array, count, array.shape[1:], array.dtype)

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> "Stack":
        """These arrays, alike in shape and dtype."""
        return cls(arrays, len(arrays), arrays[0].shape, arrays[0].dtype)

    def host(self) -> np.ndarray[Any, Any]:
        """All of them on the host, which waits for the device."""
        if isinstance(self._arrays, jax.Array):
            return np.asarray(self._arrays)[: self._count]
        return np.stack(jax.device_get(self._arrays))

    def column(self, inline: int) -> Column:
        """As values, or by handle where one is larger than `inline` bytes."""
        if self.nbytes > inline:
            handles = [self._handle(place) for place in range(self._count)]
            return Column(handles, [array_stub(self.shape, self.dtype)] * self._count)
        host = self.host().view(Tensor)
        host.flags.writeable = False
        packed, rows = pack_rows(host), range(self._count)
        if host.nbytes <= LARGE_STACK:
            return Column([host[place, ...] for place in rows], packed)
        return Column([read_only(host[place, ...].copy()) for place in rows], packed)

    def _handle(self, place: int) -> ArrayHandle:
        arrays = self._arrays

        def read() -> Any:
            if isinstance(arrays, jax.Array):
                return jax.lax.dynamic_index_in_dim(arrays, np.int32(place), keepdims=False)
            return arrays[place]

        return ArrayHandle(self.shape, self.dtype, read)


def columns(outputs: Any, count: int, inline: int = INLINE_BYTES) -> Column:
    """A tree of stacks as one column: tuples, dicts and arrays per step.

    Raises:
        ArgumentTypeError: it holds something else.
    """
    if isinstance(outputs, Stack):
        return outputs.column(inline)
    if isinstance(outputs, (tuple, list)):
        return together([columns(one, count, inline) for one in outputs], count)
    if isinstance(outputs, Mapping):
        named = {str(name): columns(one, count, inline) for name, one in outputs.items()}
        values = [{name: one.values[k] for name, one in named.items()} for k in range(count)]
        packed = [
            join([entry(name, one.packed[k]) for name, one in named.items()]) for k in range(count)
        ]
        return Column(values, packed)
    if outputs is None:
        return Column([None] * count, [pack(None)] * count)
    raise ArgumentTypeError(
        f"outputs of a step must be arrays in tuples, lists and dicts, got {type(outputs).__name__}"
    )


def together(parts: Sequence[Column], count: int) -> Column:
    """Columns side by side: a tuple per step."""
    if not parts:
        return Column([()] * count, [pack([])] * count)
    values = list(zip(*(one.values for one in parts), strict=True))
    packed = [pack_list(row) for row in zip(*(one.packed for one in parts), strict=True)]
    return Column(values, packed)


@lru_cache(maxsize=256)
def stub(kind: str, name: str, summary: str) -> bytes:
    """A reference to a live thing, packed."""
    return pack(Reference(kind=kind, type=name, summary=summary, id=""))


def array_stub(shape: tuple[int, ...], dtype: Any) -> bytes:
    """A reference to an array, packed."""
    return stub("array", "ndarray", f"{np.dtype(dtype)}{list(shape)}")
