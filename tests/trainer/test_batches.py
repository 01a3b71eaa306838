import gc
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from railbus.schemas.errors import ArgumentError, ArgumentTypeError, DatasetError
from railbus.trainer.arrays import ArrayDataset
from railbus.trainer.batches import BatchSource, Pass

Batch = Any


def batches(*sizes: int, width: int = 3) -> list[Batch]:
    """Batches whose labels say which batch it is."""
    return [
        (np.zeros((size, width), np.float32), np.full(size, number, np.int32))
        for number, size in enumerate(sizes)
    ]


def generator(found: list[Batch]) -> Iterator[Batch]:
    yield from found


def opened(dataset: Any) -> Pass:
    return begun(BatchSource(dataset, "train_dataset"))


def begun(source: BatchSource) -> Pass:
    """Its next pass, as a run begins it."""
    passing = source.open()
    passing.peek()
    passing.begin()
    return passing


def rest(passing: Pass) -> list[Batch]:
    taken = []
    while passing.more():
        taken.append(passing.take())
    return taken


def numbers(found: list[Batch]) -> list[int]:
    return [int(labels[0]) for _, labels in found]


class Rewinding:
    """A loader that sets itself back in `__iter__` and returns itself."""

    def __init__(self, found: list[Batch]) -> None:
        self.found, self.place = found, len(found)

    def __iter__(self):
        self.place = 0
        return self

    def __next__(self) -> Batch:
        if self.place == len(self.found):
            raise StopIteration
        self.place += 1
        return self.found[self.place - 1]


class Forward:
    """An iterator written in Python, without a way back."""

    def __init__(self, found: list[Batch]) -> None:
        self.found = list(found)

    def __iter__(self):
        return self

    def __next__(self) -> Batch:
        if not self.found:
            raise StopIteration
        return self.found.pop(0)


class Tensor:
    """As MindSpore's: `asnumpy`, and no way for numpy to get at the values by itself."""

    shape, dtype = (2,), "Float32"

    def asnumpy(self) -> np.ndarray:
        return np.ones(2, np.float32)


ONCE: dict[str, Callable[[list[Batch]], Iterator[Batch]]] = {
    "generator": generator,
    "list_iterator": iter,
    "map": lambda found: map(tuple, found),
    "python": Forward,
}


# ArrayDataset


@given(
    samples=st.integers(1, 40),
    batch_size=st.integers(1, 45),
    shuffle=st.booleans(),
    epochs=st.integers(1, 3),
)
def test_every_epoch_holds_every_sample_once_with_its_label(samples, batch_size, shuffle, epochs):
    x = np.arange(samples)
    dataset = ArrayDataset(x, x * 10, batch_size=batch_size, shuffle=shuffle)

    for _ in range(epochs):
        found = list(dataset)
        ordered = np.concatenate([inputs for inputs, _ in found])
        assert len(found) == len(dataset)
        assert all(len(inputs) == batch_size for inputs, _ in found[:-1])
        assert sorted(ordered) == list(range(samples))
        assert all((labels == inputs * 10).all() for inputs, labels in found)


@given(samples=st.integers(1, 40), batch_size=st.integers(1, 40))
def test_drop_remainder_leaves_out_only_the_smaller_batch(samples, batch_size):
    batch_size = min(samples, batch_size)
    dataset = ArrayDataset(np.arange(samples), batch_size=batch_size, drop_remainder=True)

    found = list(dataset)

    assert len(found) == len(dataset) == samples // batch_size
    assert all(inputs.shape == (batch_size,) for (inputs,) in found)


def test_the_order_depends_on_seed_and_epoch_only():
    def order(seed: int, epoch: int) -> list[int]:
        dataset = ArrayDataset(np.arange(30), batch_size=7, shuffle=True, seed=seed)
        dataset.epoch = epoch
        return list(np.concatenate([inputs for (inputs,) in dataset]))

    dataset = ArrayDataset(np.arange(30), batch_size=7, shuffle=True, seed=3)
    orders = [list(np.concatenate([inputs for (inputs,) in dataset])) for _ in range(3)]

    assert dataset.epoch == 3
    assert orders == [order(3, 0), order(3, 1), order(3, 2)]
    assert len({tuple(one) for one in [*orders, order(4, 0), order(4, 1)]}) == 5


def test_two_iterations_at_once_are_two_epochs():
    dataset = ArrayDataset(np.arange(20), batch_size=20, shuffle=True)

    first, second = iter(dataset), iter(dataset)

    assert dataset.epoch == 2
    assert (next(second)[0] != next(first)[0]).any()


def test_an_unshuffled_dataset_keeps_the_order():
    (first, _), (last, _) = ArrayDataset(np.arange(5), np.arange(5), batch_size=3)

    assert list(first) == [0, 1, 2] and list(last) == [3, 4]


@pytest.mark.parametrize("shuffle", [False, True])
def test_device_arrays_stay_on_the_device(shuffle):
    x = jnp.arange(6.0).reshape(3, 2)

    found = list(ArrayDataset(x, batch_size=2, shuffle=shuffle))

    assert all(isinstance(inputs, jax.Array) for (inputs,) in found)
    assert sorted(float(row[0]) for (inputs,) in found for row in inputs) == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("arrays", "arguments", "error", "words"),
    [
        ((), {"batch_size": 1}, ArgumentError, "lengths \\[\\]"),
        ((np.ones(3), np.ones(4)), {"batch_size": 1}, ArgumentError, "\\[3, 4\\]"),
        ((np.ones((0, 4)),), {"batch_size": 1}, ArgumentError, "\\[0\\]"),
        ((np.ones(3),), {"batch_size": 0}, ArgumentError, "batch_size must be at least 1, got 0"),
        ((np.ones(3),), {"batch_size": 1, "seed": -1}, ArgumentError, "seed must be at least 0"),
        ((np.ones(3),), {"batch_size": 4, "drop_remainder": True}, ArgumentError, "no batch"),
        ((np.ones(3),), {"batch_size": 1.0}, ArgumentTypeError, "batch_size must be an int"),
        ((np.ones(3),), {"batch_size": True}, ArgumentTypeError, "batch_size must be an int"),
        ((np.ones(3), 1.5), {"batch_size": 1}, ArgumentTypeError, "array 1 .* samples axis"),
        ((np.ones(3), "abc"), {"batch_size": 1}, ArgumentTypeError, "array 1 .* a str"),
        ((np.array(["a"]),), {"batch_size": 1}, ArgumentTypeError, "array 0 .* not numeric"),
    ],
)
def test_arrays_and_numbers_that_cannot_work_are_refused(arrays, arguments, error, words):
    with pytest.raises(error, match=words):
        ArrayDataset(*arrays, **arguments)


def test_an_epoch_below_zero_is_refused():
    with pytest.raises(ArgumentError, match="epoch must be at least 0, got -1"):
        ArrayDataset(np.ones(3), batch_size=1).epoch = -1


# Nothing lost, nothing delivered twice


@given(
    kind=st.sampled_from(sorted(ONCE)),
    count=st.integers(1, 8),
    partial=st.booleans(),
    acts=st.lists(
        st.tuples(st.sampled_from(["take", "peek", "more", "back", "renew"]), st.integers(1, 4)),
        max_size=25,
    ),
)
def test_no_batch_of_an_iterator_is_lost_or_delivered_twice(kind, count, partial, acts):
    iterator = ONCE[kind](batches(*[4] * (count - partial), *[2] * partial))
    source = opened(iterator)
    kept: list[Batch] = []
    others = 0  # how many of them an earlier source has taken

    for act, times in acts:
        if act == "take":
            kept += [source.take() for _ in range(times) if source.more()]
        elif act == "back":
            first = max(len(kept) - times, others)
            source.give_back(kept[first:])
            del kept[first:]
        elif act == "renew" and len(kept) < count:
            source.close()
            source.source.end()
            source, others = opened(iterator), len(kept)
        elif act == "peek" and len(kept) < count:
            assert numbers([source.peek()]) == [len(kept)]
        elif act == "more":
            assert source.more() == (len(kept) < count)
    kept += rest(source)

    assert numbers(kept) == list(range(count))


@given(
    count=st.integers(1, 6),
    acts=st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12),
    epochs=st.integers(1, 3),
)
def test_every_epoch_of_a_re_iterable_is_whole_whatever_was_given_back(count, acts, epochs):
    source = BatchSource(batches(*[4] * (count - 1), 3), "train_dataset")

    for _ in range(epochs):
        passing = begun(source)
        kept: list[Batch] = []
        for back, times in acts:
            if back:
                passing.give_back(kept[-times:])
                del kept[-times:]
            else:
                kept += [passing.take() for _ in range(times) if passing.more()]
        kept += rest(passing)

        assert numbers(kept) == list(range(count))


@pytest.mark.parametrize("kind", sorted(ONCE))
def test_a_source_that_was_never_ended_loses_nothing_either(kind):
    iterator = ONCE[kind](batches(4, 4, 4))
    BatchSource(iterator, "train_dataset").peek()

    assert numbers(rest(opened(iterator))) == [0, 1, 2]


def test_batches_given_back_after_the_end_of_the_epoch_open_it_again():
    source = opened(generator(batches(4, 4, 2)))
    taken = rest(source)

    source.give_back(taken[1:])

    assert numbers(rest(source)) == [1, 2]


def test_a_new_epoch_goes_on_with_what_is_left_of_an_iterator():
    first = opened(generator(batches(4, 4, 4)))
    first.give_back([first.take()])
    first.close()

    assert numbers(rest(begun(first.source))) == [0, 1, 2]


def test_a_new_epoch_of_a_re_iterable_begins_anew():
    first = opened(batches(4, 4, 4))
    first.give_back([first.take(), first.take()][1:])
    first.close()

    assert numbers(rest(begun(first.source))) == [0, 1, 2]


def test_what_was_read_ahead_goes_with_its_iterator():
    found = batches(4, 4)
    gone = weakref.ref(found[0][0])
    iterator = generator(found)
    source = BatchSource(iterator, "train_dataset")
    source.peek()
    source.end()

    del iterator, source, found
    gc.collect()

    assert gone() is None


def test_an_iterator_without_weak_references_is_let_go_when_nothing_is_ahead():
    class Origin(list[Batch]):
        pass

    origin = Origin(batches(4, 4))
    gone = weakref.ref(origin)
    iterator = map(tuple, origin)
    passing = opened(iterator)
    rest(passing)
    passing.close()
    passing.source.end()

    del iterator, passing, origin
    gc.collect()

    assert gone() is None


def test_iterators_are_told_apart_by_identity_not_by_equality():
    class Alike(Forward):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    first, second = Alike(batches(4, 4)), Alike(batches(4, 4, 4))
    BatchSource(first, "train_dataset").peek()

    assert numbers(rest(opened(second))) == [0, 1, 2]
    assert numbers(rest(opened(first))) == [0, 1]


# Epochs


def test_peek_leaves_the_batch_and_opens_one_epoch_only():
    dataset = ArrayDataset(np.arange(6), batch_size=2)
    source = BatchSource(dataset, "train_dataset")

    first = source.peek()
    again = source.peek()
    passing = begun(source)

    assert first is again is passing.take()
    assert dataset.epoch == 1


def test_an_epoch_that_was_only_looked_into_is_not_counted():
    dataset = ArrayDataset(np.arange(6), batch_size=2, shuffle=True)
    source = BatchSource(dataset, "train_dataset")
    rest(begun(source))
    looked_into = source.open()
    looked_into.give_back(looked_into.read(2))

    looked_into.close()

    assert dataset.epoch == 1


def test_several_batches_are_read_up_to_one_of_another_size():
    passing = opened(batches(4, 4, 4, 2))

    assert numbers(passing.read(2)) == [0, 1]
    assert numbers(passing.read(5)) == [2]
    assert numbers(passing.read(5)) == [3]
    assert passing.read(5) == []


def test_what_the_dataset_raises_is_raised_when_its_place_is_reached():
    def failing() -> Iterator[Batch]:
        yield from batches(4, 4)
        raise OSError("the disk is gone")

    passing = opened(failing())

    assert numbers(passing.read(5)) == [0, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            passing.more()


def test_peek_after_an_epoch_shows_the_next_one():
    found = iter([batches(4, 4), batches(8, 8)[1:]])

    class Dataset:
        def __iter__(self) -> Iterator[Batch]:
            return iter([(x[:4], y[:4]) for x, y in next(found)])

    source = BatchSource(Dataset(), "train_dataset")
    rest(begun(source))

    assert numbers([source.peek()]) == [1]
    assert numbers(rest(begun(source))) == [1]


def test_a_generator_of_a_re_iterable_is_closed_at_the_end():
    closed = []

    class Dataset:
        def __iter__(self) -> Iterator[Batch]:
            try:
                yield from batches(4, 4)
            finally:
                closed.append(True)

    opened(Dataset()).close()

    assert closed == [True]


def test_a_generator_that_the_user_passed_stays_open():
    iterator = generator(batches(4, 4))
    passing = opened(iterator)
    passing.take()
    passing.close()

    assert numbers([next(iterator)]) == [1]


def test_an_iterator_is_refused_for_more_than_one_epoch():
    for name, make in ONCE.items():
        source = BatchSource(make(batches(4)), "train_dataset")
        source.check_epochs(1)
        with pytest.raises(DatasetError, match="train_dataset .* read once, 5 epochs were asked"):
            source.check_epochs(5)
        assert numbers(rest(opened(source.dataset))) == [0], name


def test_a_loader_that_rewinds_itself_is_good_for_many_epochs():
    source = BatchSource(Rewinding(batches(4, 4)), "train_dataset")
    source.check_epochs(3)
    found = []
    for _ in range(3):
        found.append(numbers(rest(begun(source))))

    assert found == [[0, 1]] * 3
    assert numbers(rest(opened(source.dataset))) == [0, 1]


def test_an_empty_epoch_after_a_full_one_looks_like_an_iterator():
    class Dataset:
        def __init__(self) -> None:
            self.found = iter(batches(4, 4))

        def __iter__(self) -> Iterator[Batch]:
            return self.found

    source = BatchSource(Dataset(), "train_dataset")
    rest(begun(source))

    with pytest.raises(DatasetError, match="no batch in this epoch.* iterator that can be read"):
        begun(source)


def test_there_is_nothing_to_take_after_the_last_batch():
    source = opened(batches(4))
    source.take()

    with pytest.raises(DatasetError, match="no batch left"):
        source.take()


def test_an_exhausted_iterator_is_not_asked_again():
    asked = itertools.count()

    class Dataset:
        def __iter__(self) -> Iterator[Batch]:
            return iter(lambda: batches(4)[0] if next(asked) != 1 else None, None)

    source = opened(Dataset())

    assert len(rest(source)) == 1
    assert not source.more()
    assert next(asked) == 2


# Sizes


def test_the_size_is_what_the_dataset_tells():
    class MindSpore:
        def get_dataset_size(self) -> int:
            return 7

    class Unsized:
        def __len__(self) -> int:
            raise TypeError("a stream has no length")

    assert BatchSource(batches(4, 4), "train_dataset").size == 2
    assert BatchSource(MindSpore(), "train_dataset").size == 7
    assert BatchSource(generator([]), "train_dataset").size is None
    assert BatchSource(Unsized(), "train_dataset").size is None


# Structure and shapes


def test_lists_and_mappings_come_out_as_tuples():
    x, y = np.ones((2, 3)), np.zeros(2)
    found = [[x, y], {"image": x, "label": y}, {"label": y, "image": x}]

    taken = rest(opened(found))

    assert all(isinstance(one, tuple) for one in taken)
    assert all(np.shares_memory(one[0], x) and np.shares_memory(one[1], y) for one in taken)


def test_columns_that_change_are_refused():
    x = np.ones(2)
    source = opened([{"image": x, "label": x}, {"image": x, "target": x}])
    source.take()

    with pytest.raises(DatasetError, match="batch 1.* 'target'\\].*'image', 'label'\\]"):
        source.more()


def test_arrays_are_handed_on_uncopied_and_read_only():
    leaves = (np.ones(2), jnp.ones(2), np.ones(2, ml_dtypes.bfloat16), jax.random.key(0))

    first, on_device, third, key = BatchSource([leaves], "v").peek()

    assert np.shares_memory(first, leaves[0]) and np.shares_memory(third, leaves[2])
    assert on_device is leaves[1] and key is leaves[3]
    assert not (first.flags.writeable or third.flags.writeable)


def test_tensors_numbers_and_lists_become_arrays():
    tensor, number, nested = BatchSource([(Tensor(), 3, [[1.0, 2.0]])], "train_dataset").peek()

    assert tensor.tolist() == [1.0, 1.0] and tensor.dtype == np.float32
    assert number.shape == () and nested.shape == (1, 2)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (np.ones((2, 3)), "batch 0.* is a ndarray, expected a tuple, list or mapping"),
        ("text", "is a str, expected a tuple"),
        (None, "is a NoneType"),
        ((), "is a tuple, expected"),
        ((np.ones(2), "text"), "a str at position 1"),
        ((np.ones(2), None), "a NoneType at position 1"),
        ((np.ones(2), {"a": 1}), "a dict at position 1"),
        ((np.array([object()]), np.ones(2)), "a ndarray at position 0.*object is not numeric"),
        ((np.zeros(2, [("a", "i4")]),), "position 0.*not numeric"),
        (([[1, 2], [3]], np.ones(2)), "a list at position 0"),
        (([np.ones(2), np.ones(2)], np.ones(2)), "a list at position 0.*must be flat"),
        ((np.ones((0, 4)), np.ones(0)), "holds no samples: float64\\[0, 4\\], float64\\[0\\]"),
    ],
)
def test_what_is_no_batch_is_refused(batch, words):
    source = BatchSource(generator([batch]), "valid_dataset")

    with pytest.raises(DatasetError, match=f"valid_dataset: .*{words}"):
        source.peek()


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([], "valid_dataset is empty, expected at least one batch"),
        (iter([]), "is empty or was read to its end before"),
        (5, "must be an iterable of batches, got an int"),
        ((np.ones(2), jnp.ones(2)), "is a tuple of samples.*ArrayDataset\\(x, y, batch_size="),
        ({"x": np.ones(2), "y": np.ones(2)}, "is a dict of samples.*ArrayDataset"),
        (np.ones((2, 2)), "is a ndarray of samples.*ArrayDataset"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset, words):
    with pytest.raises(DatasetError, match=words):
        BatchSource(dataset, "valid_dataset").peek()


@pytest.mark.parametrize(
    "other",
    [
        (np.zeros((4, 3), np.float32),),
        (np.zeros((4, 3), np.float32), np.zeros(4, np.int32), np.zeros(4)),
        (np.zeros((4, 2), np.float32), np.zeros(4, np.int32)),
        (np.zeros((4, 3), np.float64), np.zeros(4, np.int32)),
        (np.zeros((4, 3), np.float32), np.zeros((4, 1), np.int32)),
        (np.zeros((5, 3), np.float32), np.zeros(5, np.int32)),
        (np.zeros((3, 3), np.float32), np.zeros(5, np.int32)),
    ],
)
def test_a_batch_unlike_the_first_is_refused_before_it_is_handed_out(other):
    source = opened([*batches(4, 4), other])
    source.take()
    source.take()

    expected = "expected float32\\[4, 3\\], int32\\[4\\] as in the first"
    for _ in range(2):
        with pytest.raises(DatasetError, match=f"train_dataset: batch 2.*holds .*{expected}"):
            source.more()
    with pytest.raises(DatasetError, match=expected):
        source.take()


def test_a_smaller_batch_is_refused_unless_it_is_the_last():
    source = opened(batches(4, 2, 4))
    source.take()

    with pytest.raises(DatasetError, match="batch 1.*float32\\[2, 3\\].* only the last batch"):
        source.more()


def test_the_first_batch_sets_the_shapes_for_all_epochs():
    found = [batches(4), batches(5)]

    class Dataset:
        def __iter__(self) -> Iterator[Batch]:
            return iter(found.pop(0))

    source = BatchSource(Dataset(), "train_dataset")
    begun(source).take()

    with pytest.raises(DatasetError, match="batch 0.*int32\\[5\\], expected"):
        begun(source)


def test_a_smaller_last_batch_is_mentioned_once(caplog):
    source = BatchSource(batches(4, 4, 2), "train_dataset")

    with caplog.at_level(logging.INFO, logger="railbus.trainer.batches"):
        for _ in range(3):
            assert len(rest(begun(source))) == 3

    (record,) = caplog.records
    assert record.getMessage() == (
        "train_dataset: the last batch is smaller, float32[2, 3], int32[2]; "
        "it has its own compilation"
    )


def test_the_index_in_a_message_counts_the_batches_of_the_epoch():
    found = [batches(4, 4), [*batches(4, 4), *batches(4, width=9)]]

    class Dataset:
        def __iter__(self) -> Iterator[Batch]:
            return iter(found.pop(0))

    source = BatchSource(Dataset(), "train_dataset")
    rest(begun(source))
    passing = begun(source)
    passing.give_back([passing.take()])

    with pytest.raises(DatasetError, match="batch 2, counted from 0"):
        rest(passing)
