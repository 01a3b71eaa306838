"""Snapshots of a series as entries: what has changed, without decoding the rest."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from railbus.schemas.codec import entry, join, pack
from railbus.schemas.entries import Series, split
from railbus.schemas.errors import SnapshotError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=40)
    | st.binary(max_size=300)
    | st.integers(0, 9).map(lambda n: np.arange(n, dtype=np.float32))
    | st.integers(0, 9).map(np.int16),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text("ab"), inner, max_size=4),
    max_leaves=6,
)
KEYS = st.sampled_from([f"key {n}" for n in range(20)])
SNAPSHOTS = st.dictionaries(KEYS, VALUES, max_size=20)


def packed(values: dict[str, Any]) -> dict[str, bytes]:
    return {key: pack(value) for key, value in values.items()}


def joined(entries: dict[str, bytes]) -> bytes:
    return join([entry(key, value) for key, value in entries.items()])


@given(SNAPSHOTS)
def test_a_split_snapshot_holds_what_was_joined_in_order(values):
    entries = packed(values)

    assert list(split(joined(entries)).items()) == list(entries.items())


@given(SNAPSHOTS, st.lists(st.dictionaries(KEYS, st.none() | VALUES, max_size=3), max_size=8))
def test_a_series_tells_exactly_what_has_changed(first, steps):
    series, now = Series(), packed(first)
    series.advance(joined(now))
    for step in steps:
        before = now
        now = {**before, **packed(step)}
        gone = [key for key, value in step.items() if value is None]
        now = {key: value for key, value in now.items() if key not in gone}

        found = series.advance(joined(now))

        changed = {key: value for key, value in now.items() if before.get(key) != value}
        assert found == {**changed, **{key: None for key in before.keys() - now.keys()}}
        assert series.values == now


FEW = st.fixed_dictionaries({key: st.sampled_from([0, 1, 200, 70_000]) for key in "abc"})


@given(st.lists(FEW, min_size=1, max_size=20))
def test_values_that_come_and_go_are_told_each_time(steps):
    series, before = Series(), dict[str, bytes]()
    for step in steps:
        now = packed(step)

        found = series.advance(joined(now))

        assert found == {key: value for key, value in now.items() if before.get(key) != value}
        before = now


def test_bytes_that_go_on_are_no_snapshot_of_a_series_either():
    series = Series()
    for count in range(3):
        series.advance(joined(packed({"a": 1, "count": count})))

    with pytest.raises(SnapshotError):
        series.advance(joined(packed({"a": 1, "count": 3})) + b"\x01")


@given(SNAPSHOTS, st.data())
def test_bytes_that_are_cut_or_go_on_are_no_snapshot(values, data):
    whole = joined(packed(values))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]

    for wrong in (cut, whole + b"\x01", whole + b"\xa1a\x01"):
        with pytest.raises(SnapshotError):
            split(wrong)


@pytest.mark.parametrize("wrong", [b"\x93\x01\x02\x03", b"\x82\xa1a\x01\xa1a\x02", b"\x81\x01\x02"])
def test_what_is_no_map_of_new_str_keys_is_no_snapshot(wrong):
    with pytest.raises(SnapshotError):
        split(wrong)
