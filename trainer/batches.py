"""Datasets as a run reads them: batch by batch, checked, none lost and none delivered twice."""

import logging
import math
import operator
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, TypeAlias

import numpy as np

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, DatasetError

logger = logging.getLogger(__name__)

Batch: TypeAlias = tuple[Any, ...]
Layout: TypeAlias = tuple[tuple[tuple[int, ...], Any], ...]


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
        self.batch_size = _count("batch_size", batch_size, 1)
        self.seed = _count("seed", seed, 0)
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
        self._epoch = _count("epoch", epoch, 0)

    def __len__(self) -> int:
        samples = len(self.arrays[0])
        return samples // self.batch_size if self.drop_remainder else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._shuffled(epoch) if self.shuffle else self._ordered()

    def _ordered(self) -> Iterator[Batch]:
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield tuple(array[start : start + self.batch_size] for array in self.arrays)

    def _shuffled(self, epoch: int) -> Iterator[Batch]:
        stream = np.random.SeedSequence(self.seed, spawn_key=(epoch,))
        order = np.random.default_rng(stream).permutation(len(self.arrays[0]))
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = order[start : start + self.batch_size]
            yield tuple(array.take(rows, axis=0) for array in self.arrays)


# What was read ahead from an iterator that can be read once belongs to the iterator, not to the
# source that read it: the next source over the same object finds it here, whatever became of the
# first. Keyed by identity, since an iterator may compare or hash as it likes. An entry goes with
# its iterator; one that cannot be weakly referenced (`zip`, `map`) is held until nothing is ahead.
_ahead_of: dict[int, tuple[Any, deque[Any]]] = {}


def _shared(iterator: Any) -> deque[Any]:
    key = id(iterator)
    if key not in _ahead_of:
        try:
            owner = weakref.ref(iterator, lambda _: _ahead_of.pop(key, None))
        except TypeError:
            owner = iterator
        _ahead_of[key] = owner, deque()
    return _ahead_of[key][1]


class BatchSource:
    """One dataset as a run reads it, epoch by epoch.

    Batches are read ahead and may be given back, so a dataset must not reuse its buffers.

    Args:
        dataset: a re-iterable of batches, or an iterator (good for one epoch). A batch is a tuple,
            a list or a mapping (its values, in the order of the first one) of arrays.
        name: for messages, `"train_dataset"` or `"valid_dataset"`.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset, self.name = dataset, name
        self._once = _readable_once(dataset)
        self._ahead: deque[Any] = deque()
        self._iterator: Iterator[Any] | None = None
        self._exhausted = False
        self._begun = False
        self._taken = 0
        self._checked: Batch | None = None
        self._first: Layout | None = None
        self._columns: tuple[Any, ...] | None = None
        self._said = False

    @property
    def size(self) -> int | None:
        """Batches per epoch by `get_dataset_size()` (MindSpore) or `len`; None when unknown."""
        count = getattr(self.dataset, "get_dataset_size", None)
        try:
            return operator.index(count() if callable(count) else len(self.dataset))
        except TypeError:
            return None

    def check_epochs(self, epochs: int) -> None:
        """Refuse data that cannot be read so often, before anything runs.

        Raises:
            DatasetError: it is an iterator, and more than one epoch was asked for.
        """
        if self._once and epochs > 1:
            raise DatasetError(
                f"{self.name} is an iterator that can be read once, {epochs} epochs were asked "
                f"for; pass an object whose __iter__ starts anew, got {_kind(self.dataset)}"
            )

    def peek(self) -> Batch:
        """The first batch of the coming epoch, which stays there; in an epoch, the next one.

        Raises:
            DatasetError: it is no dataset, it is empty, or the batch does not fit.
        """
        if self._iterator is None or (self._begun and not self.more()):
            self._open()
        return self._head()

    def begin_epoch(self) -> None:
        """The next epoch begins; what is left of the last one is left out, unless it is an iterator.

        Raises:
            DatasetError: as for `peek`.
        """
        if self._iterator is None or self._begun:
            self._open()
        self._begun = True
        self._head()

    def more(self) -> bool:
        """Whether the epoch has another batch.

        Raises:
            DatasetError: that batch does not fit those before it.
        """
        if not self._read(1):
            return False
        if self._checked is None or self._ahead[0] is not self._checked:
            batch = self._as_batch(self._ahead[0])
            self._check(batch)
            self._ahead[0] = self._checked = batch
        return True

    def take(self) -> Batch:
        """That batch.

        Raises:
            DatasetError: there is none, or it does not fit.
        """
        if not self.more():
            raise DatasetError(f"{self.name} has no batch left in this epoch")
        self._taken += 1
        batch: Batch = self._ahead.popleft()
        return batch

    def give_back(self, batches: Sequence[Batch]) -> None:
        """Batches that were taken and not trained on become the next of this epoch, in order."""
        self._ahead.extendleft(reversed(batches))
        self._taken = max(self._taken - len(batches), 0)

    def end(self) -> None:
        """The run is over. What was read ahead of an iterator stays for the next source over it."""
        if self._once and not self._ahead:
            _ahead_of.pop(id(self.dataset), None)
        self._drop()
        self._ahead, self._begun = deque(), False

    def _drop(self) -> None:
        if not self._once and isinstance(self._iterator, GeneratorType):
            self._iterator.close()
        self._iterator = None

    def _open(self) -> None:
        self._drop()
        self._iterator = _iterate(self.dataset, self.name)
        self._ahead = _shared(self.dataset) if self._once else deque()
        self._exhausted = self._begun = False
        self._taken = 0

    def _read(self, count: int) -> bool:
        """Whether `count` batches are there, read ahead as far as that needs."""
        while len(self._ahead) < count and self._iterator is not None and not self._exhausted:
            try:
                self._ahead.append(next(self._iterator))
            except StopIteration:
                self._exhausted = True
        return len(self._ahead) >= count

    def _head(self) -> Batch:
        if self.more():
            head: Batch = self._ahead[0]
            return head
        if self._first is not None:
            raise DatasetError(
                f"{self.name} yielded no batch in this epoch, but it did before: it looks like an "
                f"iterator that can be read once; pass an object whose __iter__ starts anew"
            )
        used_up = " or was read to its end before" if self._once else ""
        raise DatasetError(f"{self.name} is empty{used_up}, expected at least one batch")

    def _where(self) -> str:
        return f"{self.name}: batch {self._taken}, counted from 0,"

    def _as_batch(self, found: Any) -> Batch:
        """What the dataset yielded as a tuple of arrays."""
        if isinstance(found, Mapping):
            found = self._in_order(found)
        if not isinstance(found, (tuple, list)) or not found:
            raise DatasetError(
                f"{self._where()} is {_kind(found)}, expected a tuple, list or mapping of arrays, "
                f"for example (inputs, labels)"
            )
        return tuple(self._leaf(place, leaf) for place, leaf in enumerate(found))

    def _in_order(self, found: Mapping[Any, Any]) -> tuple[Any, ...]:
        self._columns = self._columns or tuple(found)
        if set(found) != set(self._columns):
            raise DatasetError(
                f"{self._where()} has the columns {list(found)}, expected {list(self._columns)} as "
                f"in the first one"
            )
        return tuple(found[column] for column in self._columns)

    def _leaf(self, place: int, leaf: Any) -> Any:
        try:
            return as_array(leaf)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DatasetError(
                f"{self._where()} holds {_kind(leaf)} at position {place}, expected a numeric "
                f"array: {error}"
            ) from error

    def _check(self, batch: Batch) -> None:
        """Compare with the first batch; a smaller one must be the last of its epoch."""
        found: Layout = tuple((tuple(leaf.shape), leaf.dtype) for leaf in batch)
        if not any(math.prod(shape) for shape, _ in found):
            raise DatasetError(f"{self._where()} holds no samples: {_text(found)}")
        if self._first is None:
            self._first = found
        if found == self._first:
            return
        if not _smaller(found, self._first):
            raise DatasetError(
                f"{self._where()} holds {_text(found)}, expected {_text(self._first)} as in the "
                f"first one"
            )
        if self._read(2):
            raise DatasetError(
                f"{self._where()} holds {_text(found)} and is not the last, expected "
                f"{_text(self._first)} as in the first one: only the last batch of an epoch may be "
                f"smaller"
            )
        if not self._said:
            logger.info(
                "%s: the last batch is smaller, %s; it has its own compilation",
                self.name,
                _text(found),
            )
        self._said = True


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


def _readable_once(dataset: Any) -> bool:
    """Whether `dataset` is an iterator that iterating again cannot set back.

    A loader may well rewind itself in `__iter__` and return itself. One that only returns itself
    needs no name for that, an attribute's or another's; generators and the like have no code.
    """
    if not isinstance(dataset, Iterator):
        return False
    code = getattr(type(dataset).__iter__, "__code__", None)
    return code is None or not (code.co_names or code.co_freevars)


def _iterate(dataset: Any, name: str) -> Iterator[Any]:
    parts = dataset.values() if isinstance(dataset, Mapping) else dataset
    if hasattr(dataset, "shape") or (
        isinstance(dataset, (tuple, list, Mapping))
        and parts
        and all(hasattr(part, "shape") for part in parts)
    ):
        raise DatasetError(
            f"{name} is {_kind(dataset)} of samples, expected an iterable of batches; use "
            f"ArrayDataset(x, y, batch_size=...)"
        )
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise DatasetError(f"{name} must be an iterable of batches, got {_kind(dataset)}")
    return iter(dataset)


def _smaller(found: Layout, first: Layout) -> bool:
    """Whether they differ in the number of samples only, and `found` has nowhere more."""
    return len(found) == len(first) and all(
        dtype == first_dtype
        and len(shape) == len(first_shape)
        and shape[1:] == first_shape[1:]
        and shape[:1] <= first_shape[:1]
        for (shape, dtype), (first_shape, first_dtype) in zip(found, first, strict=True)
    )


def _samples(place: int, value: Any) -> Any:
    """An array of `ArrayDataset`, which has a samples axis."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            f"array {place} must be a numeric array, got {_kind(value)}: {error}"
        ) from error
    if not array.shape:
        raise ArgumentTypeError(f"array {place} must have a samples axis, got {value!r}")
    return array


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"{name} must be an int, got {value!r}")
    if (number := operator.index(value)) < least:
        raise ArgumentError(f"{name} must be at least {least}, got {number}")
    return number


def _text(layout: Layout) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in layout)


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'aeiouAEIOU' else 'a'} {kind}"
