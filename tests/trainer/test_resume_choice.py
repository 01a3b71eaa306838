"""Which checkpoint a run goes on from, and what comes back of it."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railbus.schemas.errors import ArgumentError, CheckpointError
from railbus.subscribers import Callback, CheckpointConfig, LambdaCallback, ModelCheckpoint
from railbus.trainer import ArrayDataset
from railbus.trainer.resume import find, read_cut

from .watched import Watch, X, Y, data, make


class Offers(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def resume_points(self, latest: bool) -> list[Path]:
        return [self.path]


def cut_at(step: int, path: Path, **options: Any) -> Path:
    watch = Watch("on_train_step_end", step, path, "interrupt")
    make().train(3, data(), watch, run_id="mine", **options)
    return path


def lose_a_part(path: Path) -> None:
    (path / "_METADATA").unlink()


def change_the_arrays(path: Path) -> None:
    """As far as their checksum tells."""
    header = path / "_CHECKPOINT_METADATA"
    header.write_text(re.sub(r"(crc32\W+)\d+", r"\g<1>1", header.read_text()))


def test_the_furthest_of_the_run_counts_whatever_the_files_times_say(tmp_path):
    """A copied checkpoint is newer than the one that was written after it."""
    near, far = cut_at(3, tmp_path / "a.ckpt"), cut_at(7, tmp_path / "b.ckpt")
    os.utime(near, (2e9, 2e9))

    point = find("latest", [Offers(near), Offers(far)])

    assert point is not None
    assert point.path == far


def test_a_later_incarnation_counts_more_than_a_later_step(tmp_path):
    far = cut_at(12, tmp_path / "far.ckpt")
    again = cut_at(5, tmp_path / "again.ckpt", resume=cut_at(3, tmp_path / "a.ckpt"))

    point = find("latest", [Offers(again), Offers(far)])

    assert point is not None
    assert (point.path, point.cut.incarnation) == (again, 1)


@pytest.mark.parametrize("damage", [lose_a_part, change_the_arrays])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, damage):
    near, far = cut_at(3, tmp_path / "a.ckpt"), cut_at(7, tmp_path / "b.ckpt")
    damage(far)

    result = make().train(3, data(), [Watch(), Offers(far), Offers(near)], resume="latest")

    assert (result.status, result.step, result.stats.steps) == ("completed", 15, 12)
    assert any(f"'{far}' is passed over: " in line for line in caplog.messages)


@pytest.mark.parametrize("damage", [lose_a_part, change_the_arrays])
def test_a_damaged_newest_of_a_folder_is_passed_over_for_the_one_before(tmp_path, caplog, damage):
    saves = ModelCheckpoint("net", tmp_path, CheckpointConfig(save_checkpoint_steps=5))
    make().train(2, data(), [saves, Watch("on_train_step_end", 10, stop="interrupt")])
    damage(tmp_path / "net-2_5.ckpt")

    point = find("latest", [saves])

    assert point is not None
    assert (point.path, point.cut.step) == (tmp_path / "net-1_5.ckpt", 5)
    assert any("net-2_5.ckpt' is passed over: " in line for line in caplog.messages)


def test_the_furthest_of_a_copied_folder_counts(tmp_path):
    """Its files' times are in another order."""
    saves = ModelCheckpoint("net", tmp_path, CheckpointConfig(save_checkpoint_steps=5))
    make().train(2, data(), saves)
    os.utime(tmp_path / "net-1_5.ckpt", (2e9, 2e9))

    point = find("latest", [saves])

    assert point is not None
    assert point.path == tmp_path / "net-2_5.ckpt"


def test_other_data_is_refused_inside_of_an_epoch_and_said_between_two(tmp_path, caplog):
    inside, between = cut_at(3, tmp_path / "a.ckpt"), tmp_path / "b.ckpt"
    make().train(1, data(), Watch("on_train_epoch_end", 5, between, "interrupt"))
    other = ArrayDataset(X, Y, batch_size=4)

    with pytest.raises(ArgumentError, match="in epochs of 5 steps, this train_dataset has 9"):
        make().train(3, other, Watch(), resume=inside)
    make().train(2, other, Watch(), resume=between)
    assert any("has 9; the run is not the one" in line for line in caplog.messages)


def test_latest_says_where_there_is_nothing_to_go_on_with(tmp_path, caplog):
    make().train(1, data(), ModelCheckpoint("net", tmp_path), resume="latest")

    assert "no checkpoint to go on with; the run begins anew" in caplog.messages
    assert caplog.records[0].levelname == "WARNING"


@pytest.mark.parametrize("both", [False, True])
def test_where_no_checkpoint_can_be_read_nothing_begins_anew(tmp_path, both):
    paths = [cut_at(3, tmp_path / "a.ckpt")] + both * [cut_at(7, tmp_path / "b.ckpt")]
    for path in paths:
        lose_a_part(path)

    with pytest.raises(CheckpointError):
        make().train(3, data(), [Offers(path) for path in paths], resume="latest")


def test_dicts_come_back_in_their_order_and_callbacks_keep_theirs(tmp_path):
    """flax sorts them."""
    found: list[Any] = []

    class Keeps(Callback):
        state: dict[str, Any] = {
            "z": {"b": 1, "a": [{"d": 2, "c": (3, np.float32(4))}]},
            "a": np.arange(2),
        }

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            found.append(state)

        def on_train_step_end(self, run_context):
            run_context.original_args().zz = run_context.original_args().aa = 1

    keeps = Keeps()
    cut = Watch("on_train_epoch_end", 5, tmp_path / "cut.ckpt", "interrupt")
    first = make().fit(3, data(), data(), 1, [cut, keeps])
    second = make().fit(1, data(), data(), 1, [Watch(), keeps], resume=tmp_path / "cut.ckpt")

    assert str(found[0]) == str(
        {"z": {"b": 1, "a": [{"d": 2, "c": [3, np.float32(4)]}]}, "a": np.arange(2)}
    )
    assert isinstance(keeps.state["z"]["a"][0]["c"], tuple)
    assert [list(one) for one in second.history] == [list(one) for one in first.history]
    assert list(second.metrics) == list(first.metrics)
    assert list(read_cut(tmp_path / "cut.ckpt").params)[:3] == ["own", "zz", "aa"]


@pytest.mark.parametrize(
    ("state", "back"),
    [
        (np.str_("text"), "text"),
        ({np.str_("key"): np.bytes_(b"bytes")}, {"key": b"bytes"}),
        (np.arange(3).astype(">i4"), np.arange(3)),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T),
    ],
)
def test_what_numpy_has_of_its_own_comes_back_as_it_was(tmp_path, state, back):
    """Text could not be read any more, and the other order of bytes gave other numbers."""
    found: list[Any] = []

    class Keeps(Watch):
        def state_dict(self):
            return {"state": state}

        def load_state_dict(self, state):
            found.append(state["state"])

    path = tmp_path / "cut.ckpt"
    make().train(1, data(), Keeps("on_train_step_end", 3, path, "interrupt"))
    make().train(1, data(), Keeps(), resume=path)

    assert np.array_equal(found[0], back) if isinstance(back, np.ndarray) else found == [back]


@pytest.mark.parametrize("state", [np.array(["a"]), np.array([None]), np.void(b"ab"), 2**70])
def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_saved(tmp_path, state):
    class Keeps(ModelCheckpoint):
        def state_dict(self):
            return {"state": state}

    with pytest.raises(CheckpointError, match="a state_dict holds what no checkpoint carries"):
        make().train(1, data(), Keeps("net", tmp_path))


def test_a_state_dict_that_raises_does_not_hide_why_the_run_has_failed(tmp_path):
    class Keeps(ModelCheckpoint):
        def state_dict(self):
            raise KeyError("its own")

    def fail(run_context):
        raise RuntimeError("the run's own error")

    fails = LambdaCallback(on_train_epoch_end=fail)
    with pytest.raises(RuntimeError, match="own error"):
        make().train(1, data(), [Keeps("net", tmp_path, CheckpointConfig(5)), fails])
