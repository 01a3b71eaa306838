import copy
import pickle

import pytest

from railbus.schemas.errors import ReadOnlyParam
from railbus.schemas.frozen import FrozenDict, FrozenList

LIST = FrozenList([3, FrozenList([1]), FrozenDict(a=2)])
DICT = FrozenDict(a=1, b=FrozenDict(c=FrozenList([2])))


def imul(box):
    box *= 2


def iadd(box):
    box += [1]


def ior(box):
    box |= {"z": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda box: box.append(1),
        lambda box: box.extend([1]),
        lambda box: box.insert(0, 1),
        lambda box: box.remove(3),
        lambda box: box.pop(),
        lambda box: box.clear(),
        lambda box: box.sort(key=str),
        lambda box: box.reverse(),
        lambda box: box.__setitem__(0, 1),
        lambda box: box.__setitem__(slice(0, 1), []),
        lambda box: box.__delitem__(0),
        imul,
        iadd,
    ],
)
def test_a_list_refuses_every_change_and_says_how_to_make_it(change):
    before = list(LIST)

    with pytest.raises(ReadOnlyParam, match=r"cb_params\.name = \[\*cb_params\.name, item\]"):
        change(LIST)

    assert LIST == before


@pytest.mark.parametrize(
    "change",
    [
        lambda box: box.update(a=2),
        lambda box: box.setdefault("z", 1),
        lambda box: box.setdefault("a", 1),
        lambda box: box.pop("a"),
        lambda box: box.pop("z", None),
        lambda box: box.popitem(),
        lambda box: box.clear(),
        lambda box: box.__setitem__("a", 2),
        lambda box: box.__delitem__("a"),
        ior,
    ],
)
def test_a_dict_refuses_every_change_and_says_how_to_make_it(change):
    before = dict(DICT)

    with pytest.raises(ReadOnlyParam, match=r"cb_params\.name = \{\*\*cb_params\.name, key: value"):
        change(DICT)

    assert DICT == before


@pytest.mark.parametrize("plain", [list, dict])
def test_no_method_that_changes_the_plain_type_is_left(plain):
    frozen = {list: FrozenList, dict: FrozenDict}[plain]
    reading = {
        *("copy", "count", "index", "get", "items", "keys", "values", "fromkeys"),
        *(name for name in dir(plain) if name.startswith("__")),
    } - {"__setitem__", "__delitem__", "__iadd__", "__imul__", "__ior__"}

    changing = set(dir(plain)) - reading

    assert changing
    assert {name for name in changing if getattr(frozen, name) is getattr(plain, name)} == set()


def test_they_equal_the_plain_ones_and_take_no_attributes():
    assert LIST == [3, [1], {"a": 2}] and DICT == {"a": 1, "b": {"c": [2]}}
    assert isinstance(LIST, list) and isinstance(DICT, dict)
    assert not hasattr(LIST, "__dict__") and not hasattr(DICT, "__dict__")


@pytest.mark.parametrize(("box", "plain", "inner"), [(LIST, list, 1), (DICT, dict, "b")])
def test_a_copy_is_plain_at_its_own_level_and_a_deep_copy_at_all(box, plain, inner):
    for shallow in (copy.copy(box), box.copy(), plain(box)):
        assert type(shallow) is plain and shallow == box and shallow[inner] is box[inner]
    deep = copy.deepcopy(box)
    assert type(deep) is plain and deep == box
    assert type(deep[inner]) is plain


def test_slices_sums_and_unions_are_plain():
    assert type(LIST[:1]) is type(LIST + [1]) is type([*LIST]) is list
    assert type(DICT | {"z": 1}) is type({"z": 1} | DICT) is type({**DICT}) is dict


@pytest.mark.parametrize("box", [LIST, DICT])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_the_type(box, protocol):
    back = pickle.loads(pickle.dumps(box, protocol))

    assert type(back) is type(box) and back == box
    with pytest.raises(ReadOnlyParam):
        back.clear()
