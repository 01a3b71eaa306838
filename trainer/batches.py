"""Data sets as a run reads them: batch by batch, checked, nothing lost."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, DatasetError

logger = logging.getLogger(__name__)

Batch: TypeAlias = tuple[Any, ...]
Signature: TypeAlias = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class ArrayDataset:
    """Batches of equally long arrays, as tuples; each iteration is the next epoch.

    Args:
        arrays: numpy or JAX arrays with the samples along the first axis, the labels last.
        batch_size: samples per batch.
        shuffle: a new order in each epoch, which depends on `seed` and the number of the epoch only.
        seed: of the shuffling.
        drop_remainder: leave out a last batch that is smaller.

    Attributes:
        epoch: number of the next epoch, from 0; set it to go on from there.

    Raises:
        ArgumentError, ArgumentTypeError: for arrays or numbers that cannot work.
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_remainder: bool = False,
    ) -> None:
        if not arrays:
            raise ArgumentError("ArrayDataset needs at least one array")
        for place, array in enumerate(arrays):
            if not getattr(array, "shape", ()):
                raise ArgumentTypeError(
                    f"array {place} must be an array with a samples axis, got {_kind(array)}"
                )
        lengths = [int(array.shape[0]) for array in arrays]
        if len(set(lengths)) > 1 or not lengths[0]:
            raise ArgumentError(f"arrays must be equally long and not empty, got lengths {lengths}")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int):
            raise ArgumentTypeError(f"batch_size must be an int, got {batch_size!r}")
        if batch_size < 1 or (drop_remainder and batch_size > lengths[0]):
            raise ArgumentError(
                f"batch_size must be between 1 and the {lengths[0]} samples, got {batch_size}"
            )
        self.arrays, self.batch_size = arrays, batch_size
        self.shuffle, self.seed, self.drop_remainder = shuffle, seed, drop_remainder
        self.epoch = 0

    def __len__(self) -> int:
        samples = int(self.arrays[0].shape[0])
        return samples // self.batch_size + (
            not self.drop_remainder and samples % self.batch_size > 0
        )

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = None
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.arrays[0].shape[0])
        for first in range(0, len(self) * self.batch_size, self.batch_size):
            place = slice(first, first + self.batch_size)
            rows = place if order is None else order[place]
            yield tuple(array[rows] for array in self.arrays)


# Batches that were read from an iterator and not trained on, until somebody reads on from it. An
# entry lives only while there are such batches; the iterator is kept with them so that its id is
# not given to another.
_left_over: dict[int, tuple[Iterator[Any], deque[Batch]]] = {}


class BatchSource:
    """One data set as a run reads it.

    Args:
        dataset: a re-iterable of batches, or an iterator (good for one epoch).
        name: for messages, `"train_dataset"` or `"valid_dataset"`.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset, self.name = dataset, name
        self._once = hasattr(dataset, "__next__")
        self._iterator: Iterator[Any] | None = None
        self._ahead: deque[Batch] = deque()
        self._signature: Signature | None = None
        self._index = 0
        self._partial = False
        if self._once:
            _, self._ahead = _left_over.pop(id(dataset), (None, deque()))

    @property
    def size(self) -> int | None:
        """Batches per epoch as far as the data set tells (`len`, `get_dataset_size()`)."""
        count = getattr(self.dataset, "get_dataset_size", None)
        if callable(count):
            return int(count())
        try:
            return len(self.dataset)
        except TypeError:
            return None

    def check_epochs(self, epochs: int) -> None:
        """Raises DatasetError where the data cannot be read that often."""
        if self._once and epochs > 1:
            raise DatasetError(
                f"{self.name} is an iterator, which can be read once, and {epochs} epochs need it "
                f"{epochs} times; pass something that can be iterated anew"
            )

    def peek(self) -> Batch:
        """The first batch of the coming epoch, which stays there.

        Raises:
            DatasetError: there is none, or it is no batch.
        """
        if not self._ahead and self._iterator is None:
            self.begin_epoch()
        if not self.more():
            raise DatasetError(f"{self.name} is empty; a run needs at least one batch")
        return self._ahead[0]

    def begin_epoch(self) -> None:
        """The next epoch begins; it was begun already if nothing was taken from it yet."""
        if self._iterator is None or self._index:
            self._iterator = self._open()
            self._index, self._partial = 0, False

    def more(self) -> bool:
        """Whether the epoch has another batch.

        Raises:
            DatasetError: that batch does not fit those before it.
        """
        return bool(self._ahead) or self._read()

    def take(self) -> Batch:
        """That batch."""
        if not self.more():
            raise DatasetError(f"{self.name} has no batch left in this epoch")
        self._index += 1
        return self._ahead.popleft()

    def give_back(self, batches: Sequence[Batch]) -> None:
        """Batches that were taken and not trained on go back to the front, in their order."""
        self._ahead.extendleft(reversed(batches))

    def end(self) -> None:
        """The run is over; of an iterator, what was read ahead stays for the next reader."""
        if self._once and self._ahead:
            _left_over[id(self.dataset)] = (self.dataset, self._ahead)
        elif not self._once and hasattr(self._iterator, "close"):
            self._iterator.close()
        self._iterator, self._ahead = None, deque()

    def _open(self) -> Iterator[Any]:
        dataset = self.dataset
        if isinstance(dataset, tuple) and all(hasattr(one, "shape") for one in dataset):
            raise DatasetError(
                f"{self.name} is a tuple of arrays, not of batches; use "
                f"ArrayDataset(x, y, batch_size=...)"
            )
        try:
            return iter(dataset)
        except TypeError as error:
            raise DatasetError(
                f"{self.name} must be an iterable of batches, got {_kind(dataset)}"
            ) from error

    def _read(self) -> bool:
        """Read one batch ahead, and one more behind a partial one, which must be the last."""
        if self._iterator is None:
            return False
        found = next(self._iterator, self)
        if found is self:
            return False
        place = self._index + len(self._ahead)
        batch = self._check(as_batch(found, self.name, place), place)
        self._ahead.append(batch)
        if self._partial:
            following = next(self._iterator, self)
            if following is not self:
                raise DatasetError(
                    f"{self.name}: shapes change between batches: batch {place} has "
                    f"{_describe(batch)}, the first had {self._first()}; only the last batch of an "
                    f"epoch may be smaller"
                )
        return True

    def _check(self, batch: Batch, place: int) -> Batch:
        found = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in batch)
        if self._signature is None:
            self._signature = found
            return batch
        if found == self._signature:
            return batch
        fits = len(found) == len(self._signature) and all(
            shape[1:] == first[1:]
            and len(shape) == len(first)
            and kind == first_kind
            and (shape[:1] < first[:1] or shape == first)
            for (shape, kind), (first, first_kind) in zip(found, self._signature, strict=False)
        )
        if not fits:
            raise DatasetError(
                f"{self.name}: shapes change between batches: batch {place} has "
                f"{_describe(batch)}, expected {self._first()} as in the first"
            )
        if not self._partial:
            logger.info(
                "%s: the last batch is smaller, %s; it has a compilation of its own",
                self.name,
                _describe(batch),
            )
        self._partial = True
        return batch

    def _first(self) -> str:
        return ", ".join(f"{kind}{list(shape)}" for shape, kind in self._signature or ())


def as_batch(found: Any, name: str, place: int) -> Batch:
    """What a data set yielded as a tuple of arrays; of a mapping, its values in order.

    Raises:
        DatasetError: it is neither tuple, list nor mapping, or holds what is no numeric array.
    """
    if isinstance(found, Mapping):
        found = tuple(found.values())
    if not isinstance(found, (tuple, list)) or not found:
        raise DatasetError(
            f"{name} must yield tuples (inputs..., labels), lists or mappings of arrays; batch "
            f"{place} is {_kind(found)}"
        )
    return tuple(_leaf(one, name, place, position) for position, one in enumerate(found))


def _leaf(found: Any, name: str, place: int, position: int) -> Any:
    if hasattr(found, "shape") and hasattr(found, "dtype") and not hasattr(found, "asnumpy"):
        array = found if not type(found).__module__.startswith("torch") else np.asarray(found)
    else:
        array = np.asarray(found.asnumpy() if hasattr(found, "asnumpy") else found)
    if np.dtype(array.dtype).kind in "OSUMm":
        raise DatasetError(
            f"{name}: batch {place} holds at position {position} {_kind(found)} of dtype "
            f"{array.dtype}, which is no numeric array"
        )
    return array


def _describe(batch: Batch) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in batch)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
