"""Datasets as a run reads them: batch by batch, checked, none lost and none delivered twice."""

import logging
import math
import operator
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any

import numpy as np

from railbus.schemas.errors import DatasetError

from .arrays import (
    ArrayDataset,
    Batch,
    Layout,
    Picked,
    as_array,
    is_plain,
    kind_of,
    layout_of,
    read_only,
)

logger = logging.getLogger(__name__)

SAMPLERS = ("sampler", "batch_sampler")  # of PyTorch's loaders

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
    """One dataset as a run reads it, pass by pass.

    Batches are read ahead and may be given back. Many loaders reuse their memory, so arrays are
    copied as they are read, unless they come from a list, a tuple or an `ArrayDataset`; what a run
    shows of them is read-only.

    Args:
        dataset: a re-iterable of batches, or an iterator (good for one epoch). A batch is a tuple,
            a list or a mapping (its values, in the order of the first one) of arrays.
        name: for messages, `"train_dataset"` or `"valid_dataset"`.
        picked: read an `ArrayDataset` as rows of arrays that are on the device.
    """

    def __init__(self, dataset: Any, name: str, *, picked: bool = False) -> None:
        self.dataset, self.name, self.picked = dataset, name, picked
        self.once, self.plain = _readable_once(dataset), is_plain(dataset)
        self._lasting = self.plain or isinstance(dataset, (list, tuple))
        self._coming: Pass | None = None
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
        if self.once and epochs > 1:
            raise DatasetError(
                f"{self.name} is an iterator that can be read once, {epochs} epochs were asked "
                f"for; pass an object whose __iter__ starts anew, got {kind_of(self.dataset)}"
            )

    def peek(self) -> Batch:
        """The first batch of the coming pass, which stays there.

        Raises:
            DatasetError: it is no dataset, it is empty, or the batch does not fit.
        """
        if self._coming is None:
            self._coming = Pass(self)
        return self._coming.peek()

    def resume(self, epoch: int | None) -> None:
        """An interrupted run goes on: an `ArrayDataset` gives that epoch next."""
        if epoch is not None and self.plain:
            self.dataset.epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the coming pass; of one that is told its epoch, once it is.

        Raises:
            DatasetError: there are not so many.
        """
        self.peek()
        assert self._coming is not None
        self._coming.skip(batches, later=self.told and not self.once)

    def open(self) -> "Pass":
        """The coming pass; those before it must have been read to their end or closed."""
        coming, self._coming = self._coming or Pass(self), None
        return coming

    def end(self) -> None:
        """The run is over. What was read ahead of an iterator stays for the next source over it."""
        if self._coming is not None:
            self._coming.close()
            self._coming = None
        if not self.once or id(self.dataset) not in _ahead_of:
            return
        ahead = _ahead_of[id(self.dataset)][1]
        for one in [one for one in ahead if type(one) is _Raised]:
            if one.told:
                ahead.remove(one)
            else:
                one.error.__traceback__ = None  # it holds the run's frames, and those its arrays
        if not ahead:
            _ahead_of.pop(id(self.dataset), None)

    @property
    def told(self) -> bool:
        """Whether callbacks tell it the epoch (`set_epoch`, in PyTorch that of its sampler)."""
        parts = [self.dataset, *(getattr(self.dataset, name, None) for name in SAMPLERS)]
        return any(hasattr(part, "set_epoch") for part in parts)

    @property
    def known(self) -> Layout | None:
        """The layout of an `ArrayDataset`'s full batches, once there was one."""
        return self._first if self.plain and not self.picked else None

    def iterate(self, epoch: int | None) -> Iterator[Any]:
        """A new iteration over the dataset, or the iterator that it is.

        Args:
            epoch: of an `ArrayDataset`.
        """
        if epoch is None:
            return _iterate(self.dataset, self.name)
        dataset: ArrayDataset = self.dataset
        if self.picked:
            arrays = dataset.views
            return (Picked(arrays, rows) for rows in dataset.order(epoch))
        return dataset.batches(epoch)

    def nothing(self) -> DatasetError:
        """The error for a pass without a batch."""
        if self._first is not None:
            return DatasetError(
                f"{self.name} yielded no batch in this epoch, but it did before: it looks like an "
                f"iterator that can be read once; pass an object whose __iter__ starts anew"
            )
        used_up = " or was read to its end before" if self.once else ""
        return DatasetError(f"{self.name} is empty{used_up}, expected at least one batch")

    def checked(self, found: Any, place: int, last: Callable[[], bool]) -> tuple[Batch, Layout]:
        """What the dataset yielded as a tuple of arrays, like the first one; and its layout.

        Args:
            place: of the batch in its pass, from 0.
            last: whether no batch follows; only then it may be smaller.

        Raises:
            DatasetError: it is no batch, or unlike the first one.
        """
        where = f"{self.name}: batch {place}, counted from 0,"
        batch = self._as_batch(found, where)
        layout = layout_of(batch)
        if not any(math.prod(shape) for shape, _ in layout):
            raise DatasetError(f"{where} holds no samples: {_text(layout)}")
        if self._first is None:
            self._first = layout
        if layout != self._first:
            self._check_smaller(layout, where, last)
        return batch, layout

    def _check_smaller(self, layout: Layout, where: str, last: Callable[[], bool]) -> None:
        assert self._first is not None
        expected = f"{where} holds {_text(layout)}"
        if not _smaller(layout, self._first):
            raise DatasetError(f"{expected}, expected {_text(self._first)} as in the first one")
        if not last():
            raise DatasetError(
                f"{expected} and is not the last, expected {_text(self._first)} as in the first "
                f"one: only the last batch of an epoch may be smaller"
            )
        if not self._said:
            logger.info(
                "%s: the last batch is smaller, %s; it has its own compilation",
                self.name,
                _text(layout),
            )
        self._said = True

    def _as_batch(self, found: Any, where: str) -> Batch:
        if isinstance(found, Picked):
            return found
        if isinstance(found, Mapping):
            found = self._in_order(found, where)
        if not isinstance(found, (tuple, list)) or not found:
            raise DatasetError(
                f"{where} is {kind_of(found)}, expected a tuple, list or mapping of arrays, "
                f"for example (inputs, labels)"
            )
        return tuple(_leaf(place, leaf, where, self._lasting) for place, leaf in enumerate(found))

    def _in_order(self, found: Mapping[Any, Any], where: str) -> tuple[Any, ...]:
        self._columns = self._columns or tuple(found)
        if set(found) != set(self._columns):
            raise DatasetError(
                f"{where} has the columns {list(found)}, expected {list(self._columns)} as "
                f"in the first one"
            )
        return tuple(found[column] for column in self._columns)


class _Raised:
    """Stands in the place where the dataset has raised; whoever comes there gets the error.

    Attributes:
        told: somebody has.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.told = False


class Pass:
    """One epoch's way through a dataset; its iteration begins when a batch is first asked for.

    Attributes:
        begun: whether the run has come to it, rather than read ahead into it.
        epoch: which one of an `ArrayDataset` it is.
        taken: batches that were taken and not given back.
    """

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self.begun = False
        self._ahead: deque[Any] = deque()
        self._iterator: Iterator[Any] | None = None
        self.epoch: int | None = source.dataset.epoch if source.plain else None
        self._exhausted = False
        self._checked: Any = self  # which is no batch
        self._layout: Layout = ()
        self._skipped = 0
        self.taken = 0

    def peek(self) -> Batch:
        """The next batch, which stays there.

        Raises:
            DatasetError: the dataset is none, there is no batch, or it does not fit.
        """
        if not self.more():
            raise self.source.nothing()
        head: Batch = self._ahead[0]
        return head

    def more(self) -> bool:
        """Whether there is another batch.

        Raises:
            DatasetError: that batch does not fit those before it.
        """
        if not self._read(1):
            return False
        head = self._ahead[0]
        if type(head) is _Raised:
            raise head.error
        if head is not self._checked:
            found = self.source.checked(head, self.taken, lambda: not self._read(2))
            self._ahead[0] = self._checked = found[0]
            self._layout = found[1]
        return True

    def here(self) -> bool:
        """`more`, asked by the run itself: what the dataset raised here is then told."""
        try:
            return self.more()
        except Exception:
            head = self._ahead[0] if self._ahead else None
            if type(head) is _Raised:
                head.told = True
            raise

    def take(self) -> Batch:
        """That batch.

        Raises:
            DatasetError: there is none, or it does not fit.
        """
        if not self.more():
            raise DatasetError(f"{self.source.name} has no batch left in this epoch")
        self.taken += 1
        batch: Batch = self._ahead.popleft()
        return batch

    def read(self, count: int, seconds: float = math.inf) -> list[Batch]:
        """Up to `count` batches of one layout; none at the end.

        Args:
            seconds: read no more after so long.

        Raises:
            Exception: what the dataset raised, once the batches before it have been taken.
            BaseException: an interrupt; what was read stays there.
        """
        found: list[Batch] = []
        layout, since = None, time.perf_counter()
        try:
            while len(found) < count and self.more() and layout in (None, self._layout):
                layout = self._layout
                found.append(self.take())
                self._take_known(found, count)
                if time.perf_counter() - since > seconds:
                    break
        except BaseException as error:
            if not found or not isinstance(error, Exception):
                self.give_back(found)
                raise
        return found

    def _take_known(self, found: list[Batch], count: int) -> None:
        """Full batches of an `ArrayDataset`, which has checked its arrays, in one go."""
        known, before = self.source.known, len(found)
        if known is None or known != self._layout or self._ahead or self._iterator is None:
            return
        rows = known[0][0][0]
        try:
            for batch in islice(self._iterator, count - before):
                if len(batch[0]) != rows:
                    self._ahead.append(batch)
                    break
                found.append(batch)
        except Exception as error:
            self._ahead.append(_Raised(error))
            self._exhausted = True
        finally:
            self.taken += len(found) - before

    def give_back(self, batches: Sequence[Batch]) -> None:
        """Batches that were taken and not trained on become the next ones, in order."""
        self._ahead.extendleft(reversed(batches))
        self.taken = max(self.taken - len(batches), 0)

    def close(self) -> None:
        """Leave the rest out, unless it is an iterator, which keeps it."""
        iterator, self._iterator, self._exhausted = self._iterator, None, True
        if not self.source.once and isinstance(iterator, GeneratorType):
            iterator.close()

    def skip(self, batches: int, later: bool = False) -> None:
        """Leave out so many, which an interrupted run has trained on.

        Args:
            later: when the run comes here.

        Raises:
            DatasetError: there are not so many.
        """
        self._skipped = batches
        for _ in range(0 if later else batches):
            self.take()

    def expect(self, epoch: int) -> None:
        """An `ArrayDataset` will be in that epoch when the run comes here; begin with it anew."""
        if self.epoch != epoch:
            self.epoch = epoch
            self._anew()

    def begin(self) -> None:
        """The run comes here; an `ArrayDataset` counts that as an iteration.

        One that callbacks tell its epoch may have been told since its first batch was looked at.
        """
        self.begun = True
        if self.source.told and not self.source.once:
            self.close()
            self._anew()
        if self.epoch is not None:
            self.source.dataset.epoch = self.epoch + 1

    def _anew(self) -> None:
        self._iterator, self._exhausted, self.taken = None, False, 0
        self._ahead.clear()
        self.skip(self._skipped)

    def _read(self, count: int) -> bool:
        """Whether `count` batches are there, read ahead as far as that needs."""
        if self._iterator is None and not self._exhausted:
            try:
                self._open()
            except Exception as error:
                self._ahead.append(_Raised(error))
                self._exhausted = True
        while len(self._ahead) < count and self._iterator is not None and not self._exhausted:
            try:
                self._ahead.append(next(self._iterator))
            except StopIteration:
                self._exhausted = True
            except Exception as error:
                self._ahead.append(_Raised(error))
                self._exhausted = True
        return len(self._ahead) >= count

    def _open(self) -> None:
        if self.source.once:
            self._ahead = _shared(self.source.dataset)
        self._iterator = self.source.iterate(self.epoch)


def _leaf(place: int, leaf: Any, where: str, lasting: bool) -> Any:
    try:
        array = as_array(leaf)
        if isinstance(array, np.ndarray) and not lasting:
            array = array.copy()
        return read_only(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DatasetError(
            f"{where} holds {kind_of(leaf)} at position {place}, expected a numeric array: {error}"
        ) from error


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
            f"{name} is {kind_of(dataset)} of samples, expected an iterable of batches; use "
            f"ArrayDataset(x, y, batch_size=...)"
        )
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise DatasetError(f"{name} must be an iterable of batches, got {kind_of(dataset)}")
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


def _text(layout: Layout) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in layout)
