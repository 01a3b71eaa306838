"""Arrays as a data set: batches of rows, in order or shuffled anew each epoch."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.subscribers.checks import count

Layout: TypeAlias = tuple[tuple[tuple[int, ...], Any], ...]
Rows: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class ArrayDataset:
    """Batches of equally long arrays, as tuples; each iteration is the next epoch.

    Args:
        arrays: numpy or JAX arrays (or what `np.asarray` makes numeric arrays of), samples along
            the first axis, the labels last.
        batch_size: samples per batch.
        shuffle: a new order in each epoch; it depends on `seed` and the epoch's number only.
        seed: of the shuffling, 0 or more.
        drop_remainder: leave out a last batch that would be smaller.

    Raises:
        ArgumentError: no arrays, empty ones or of different lengths, or a number out of range.
        ArgumentTypeError: something that is no array of samples, or a number that is no int.
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_remainder: bool = False,
    ) -> None:
        self.arrays = tuple(_samples(place, array) for place, array in enumerate(arrays))
        lengths = [array.shape[0] for array in self.arrays]
        if not lengths or len(set(lengths)) > 1 or not lengths[0]:
            raise ArgumentError(
                f"ArrayDataset needs arrays that are equally long and not empty, got the lengths "
                f"{lengths}"
            )
        self.batch_size = count("batch_size", batch_size, 1)
        self.seed = count("seed", seed, 0)
        self.shuffle, self.drop_remainder = bool(shuffle), bool(drop_remainder)
        if not len(self):
            raise ArgumentError(
                f"drop_remainder leaves no batch: batch_size is {batch_size}, there are "
                f"{lengths[0]} samples"
            )
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration gives, from 0; set it to go on from there."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = count("epoch", epoch, 0)

    def __len__(self) -> int:
        samples = len(self.arrays[0])
        return samples // self.batch_size if self.drop_remainder else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self.batches(epoch)

    def batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        """The batches of one epoch; it does not count as an iteration."""
        arrays, order = self.views, self.order(epoch)
        if self.shuffle:
            return (tuple([read_only(one[rows]) for one in arrays]) for rows in order)
        return (tuple([one[rows] for one in arrays]) for rows in order)

    @property
    def views(self) -> tuple[Any, ...]:
        """The arrays, read-only, as batches are: whoever changes one would change later epochs."""
        return tuple(map(read_only, self.arrays))

    def order(self, epoch: int) -> Iterator[slice | Rows]:
        """The rows of each batch of one epoch."""
        return self._shuffled(epoch) if self.shuffle else self._ordered()

    def _ordered(self) -> Iterator[slice]:
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield slice(start, start + self.batch_size)

    def _shuffled(self, epoch: int) -> Iterator[Rows]:
        stream = np.random.SeedSequence(self.seed, spawn_key=(epoch,))
        order = np.random.default_rng(stream).permutation(len(self.arrays[0]))
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield order[start : start + self.batch_size]


def is_plain(dataset: Any) -> bool:
    """Whether it is an `ArrayDataset` whose batches are what its arrays and its order say."""
    kind = type(dataset)
    return (
        isinstance(dataset, ArrayDataset)
        and kind.__iter__ is ArrayDataset.__iter__
        and (kind.order, kind.batches) == (ArrayDataset.order, ArrayDataset.batches)
    )


class Picked(Sequence[Any]):
    """A batch of arrays that are on the device: its rows; whoever looks inside gathers them.

    Args:
        arrays: those of the data set, on the host.
        rows: which samples.
    """

    __slots__ = ("_arrays", "layout", "rows")

    def __init__(self, arrays: Sequence[Any], rows: slice | Rows) -> None:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(arrays[0])))
        self._arrays, self.rows = arrays, rows.astype(np.int32)
        count = len(rows)
        self.layout: Layout = tuple(((count, *one.shape[1:]), one.dtype) for one in arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(read_only(array[self.rows]) for array in self._arrays[place])
        return read_only(self._arrays[place][self.rows])


Batch: TypeAlias = tuple[Any, ...] | Picked


def layout_of(batch: Batch) -> Layout:
    """Shape and dtype of each array of a batch."""
    if isinstance(batch, Picked):
        return batch.layout
    return tuple((tuple(leaf.shape), leaf.dtype) for leaf in batch)


def read_only(array: Any) -> Any:
    """The same array, which cannot be written to through what is returned."""
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def as_array(value: Any) -> Any:
    """`value` with a shape and a numeric dtype; a device's array stays where it is.

    Tensors of other libraries come through numpy (`asnumpy`: MindSpore; `numpy`: torch,
    TensorFlow; `to_numpy`: pandas), and so do numbers and nested lists of numbers.

    Raises:
        TypeError, ValueError: it is none of these.
    """
    inner = value
    while isinstance(inner, (list, tuple)) and inner:
        inner = inner[0]
    if inner is not value and not isinstance(inner, (int, float, complex, np.number, np.bool_)):
        raise TypeError("a nested list must hold numbers, and a batch of arrays must be flat")
    foreign = any(hasattr(value, name) for name in ("asnumpy", "numpy", "to_numpy"))
    if foreign or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        value = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)
    if not _numeric(value.dtype):
        raise TypeError(f"the dtype {value.dtype} is not numeric")
    return value


def _numeric(dtype: Any) -> bool:
    """bfloat16 and its kin are of kind V, as bytes and structs are; JAX's keys have own dtypes."""
    if not isinstance(dtype, np.dtype):
        return True
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)


def _samples(place: int, value: Any) -> Any:
    """An array of `ArrayDataset`, which has a samples axis."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            f"array {place} must be a numeric array, got {kind_of(value)}: {error}"
        ) from error
    if not array.shape:
        raise ArgumentTypeError(f"array {place} must have a samples axis, got {value!r}")
    return array


def kind_of(value: Any) -> str:
    """Its type's name with an article, for messages."""
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'aeiouAEIOU' else 'a'} {kind}"
