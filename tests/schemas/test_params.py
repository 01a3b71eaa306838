"""`cb_params` and the ledger behind it."""

import numpy as np
import pytest

from railbus.schemas import Ledger, unpack
from railbus.schemas.errors import NotTraced, ReadOnlyParam, SnapshotError


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger({"learning_rate": float})
    made.publish({"cur_step_num": 3, "learning_rate": 0.1})
    return made


def test_an_absent_name_is_an_attribute_error_that_lists_near_ones(ledger):
    assert not hasattr(ledger.params, "cur_epoch_num")
    with pytest.raises(AttributeError, match="did you mean 'cur_step_num'"):
        _ = ledger.params.cur_step_nun
    with pytest.raises(KeyError):
        _ = ledger.params["cur_epoch_num"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eval_results", "after a validation"),
        ("momentum", "optax.inject_hyperparams"),
        ("cur_epoch_num", "the run sets it later"),
    ],
)
def test_an_absent_name_of_the_runs_own_says_where_it_is_to_be_found(ledger, name, says):
    with pytest.raises(AttributeError, match=f"no '{name}' at this point; .*{says}"):
        getattr(ledger.params, name)


def test_writes_are_a_patch_and_only_possible_inside_a_hook(ledger):
    with pytest.raises(ReadOnlyParam, match="only inside a hook"):
        ledger.params.mine = 1
    ledger.open()
    ledger.params.mine = (1, 2)
    ledger.params.learning_rate = 1
    ledger.params.update(other="x")
    del ledger.params.other
    patch = ledger.close()

    assert patch is not None
    assert {key: value and unpack(value) for key, value in patch.items()} == {
        "mine": [1, 2],
        "learning_rate": 1.0,
        "other": None,
    }
    assert unpack(ledger.snapshot()) == dict(ledger.params)


@pytest.mark.parametrize(
    ("name", "value", "kind", "says"),
    [
        ("cur_step_num", 9, ReadOnlyParam, "cur_step_num"),
        ("metrics", {}, ReadOnlyParam, "metrics"),
        ("momentum", 0.9, NotTraced, "inject_hyperparams"),
        ("train_network", {}, NotTraced, "train_network"),
        ("mine", {1, 2}, SnapshotError, "'mine'.*set"),
        ("mine", {"deep": [object()]}, SnapshotError, "'mine'"),
        ("mine", np.zeros(2**20, np.uint8), SnapshotError, "mine"),
    ],
)
def test_what_cannot_be_assigned_says_why_and_changes_nothing(ledger, name, value, kind, says):
    before = ledger.snapshot()
    ledger.open()
    with pytest.raises(kind, match=says):
        ledger.params[name] = value

    assert ledger.close() is None
    assert ledger.snapshot() == before


@pytest.mark.parametrize("name", ["lr", "LR", "learning_rates", "LearningRate", "learnign_rate"])
def test_a_key_that_looks_like_a_traced_value_is_said_once(ledger, caplog, name):
    ledger.open()
    for value in (1, 2):
        ledger.params[name] = value
        del ledger.params[name]

    (said,) = caplog.messages
    assert said.startswith(f"cb_params.{name} is a key of your own")
    assert said.endswith("assign cb_params.learning_rate")


@pytest.mark.parametrize("name", ["mine", "first_learning_rate", "rate", "l"])
def test_other_keys_of_ones_own_are_not_spoken_of(ledger, caplog, name):
    ledger.open()
    ledger.params[name] = 1

    assert caplog.messages == []


def test_values_that_are_too_much_together_are_refused_at_the_assignment(ledger):
    ledger.open()
    ledger.params.first = np.zeros(700_000, np.uint8)
    with pytest.raises(SnapshotError):
        ledger.params.second = np.zeros(700_000, np.uint8)

    assert "second" not in ledger.params
    assert len(ledger.snapshot()) < 2**20


def test_lists_in_it_change_by_assignment_only(ledger):
    ledger.open()
    ledger.params.losses = [1.0]
    with pytest.raises(ReadOnlyParam, match="assign"):
        ledger.params.losses.append(2.0)
    ledger.params.losses = [*ledger.params.losses, 2.0]

    assert ledger.params.losses == [1.0, 2.0]


def test_a_failed_hook_leaves_everything_as_it_was(ledger):
    ledger.open()
    ledger.params.mine = 1
    ledger.close()
    before = ledger.snapshot()
    ledger.open()
    ledger.params.mine = 2
    ledger.params.new = 3
    del ledger.params.mine
    ledger.revert()

    assert unpack(ledger.snapshot()) == unpack(before)


def test_whoever_was_cut_off_cannot_write_any_more(ledger):
    old = ledger.params
    ledger.open()
    ledger.renew()
    ledger.open()

    with pytest.raises(ReadOnlyParam):
        old.mine = 1
    ledger.params.mine = 2
    assert "mine" not in old


def test_an_event_that_is_withdrawn_takes_the_writes_of_all_its_hooks_with_it():
    ledger = Ledger()
    ledger.open()
    ledger.params.kept = 1
    ledger.close()
    ledger.commit()
    for value in (2, 3):
        ledger.open()
        ledger.params.kept, ledger.params.gone = value, value
        ledger.close()

    ledger.withdraw()

    assert dict(ledger.params) == {"kept": 1}
    assert unpack(ledger.snapshot()) == {"kept": 1}
