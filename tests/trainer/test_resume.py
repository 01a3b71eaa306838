"""Resuming: an interrupted and resumed run is the run that it would have been, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.schemas.errors import ArgumentError, CheckpointError
from railbus.schemas.lifecycle import Place, Plan, verify
from railbus.subscribers import Callback, History, LambdaCallback, ModelCheckpoint
from railbus.trainer import Trainer, save_checkpoint

from .watched import Watch, X, Y, data, last, make

KILLS = 25


class Renewed:
    """Each of its iterations is a generator."""

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, 36, 8):
            yield X[start : start + 8], Y[start : start + 8]


@pytest.fixture(scope="module")
def whole() -> Any:
    """The run that nobody interrupts: what was seen, its last bits, its result."""
    trainer, watch = make(), Watch()
    result = trainer.fit(3, data(), data(), 1, watch)
    return watch.seen, last(trainer), result


PLACES = [("on_train_step_end", k) for k in (1, 3, 5, 6, 10, 14)]
PLACES += [("on_train_epoch_end", k) for k in (5, 10)]
PLACES += [("on_train_epoch_begin", 5)]


@pytest.mark.parametrize(("hook", "number"), PLACES)
@pytest.mark.parametrize("stop", [None, "interrupt"])
def test_a_resumed_run_goes_on_as_if_it_had_never_ended(tmp_path, whole, hook, number, stop):
    seen, wanted, result = whole
    first = Watch(hook, number, tmp_path / "cut.ckpt", stop)
    make(block_steps=4).fit(3, data(), data(), 1, first)

    trainer, second = make(), Watch()
    resumed = trainer.fit(3, data(), data(), 1, second, resume=tmp_path / "cut.ckpt")

    place = next(k for k, one in enumerate(seen) if (one[0], one[2]) == (hook, number))
    rest = seen[place + 1 :]
    assert second.seen[-len(rest) :] == rest
    assert {one[0] for one in second.seen[: -len(rest)]} <= {
        "on_train_begin", "on_train_epoch_begin"
    }  # fmt: skip
    assert last(trainer) == wanted
    assert (resumed.history, resumed.metrics) == (result.history, result.metrics)
    assert (resumed.step, resumed.epoch, resumed.status) == (15, 3, "completed")


def shuffled_by_grain() -> Any:
    import grain

    return (
        grain.MapDataset.source(list(zip(X, Y, strict=True)))
        .shuffle(seed=1)
        .batch(8)
        .to_iter_dataset()
    )


def two_batches() -> Any:
    return [(X[:8], Y[:8]), (X[8:16], Y[8:16])]


@pytest.mark.parametrize("dataset", [Renewed, two_batches, shuffled_by_grain])
def test_other_data_sets_leave_out_the_batches_that_were_trained_on(tmp_path, dataset):
    whole, first = make(), Watch("on_train_step_end", 3, tmp_path / "cut.ckpt", stop="interrupt")
    whole.train(3, dataset(), Watch())
    wanted = last(whole)
    make().train(3, dataset(), first)

    trainer = make()
    trainer.train(3, dataset(), Watch(), resume=tmp_path / "cut.ckpt")

    assert last(trainer) == wanted


class Sampled:
    """Shuffled by the epoch that callbacks tell, as PyTorch's distributed samplers are."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch).permutation(len(X))
        for start in range(0, 36, 8):
            rows = order[start : start + 8]
            yield X[rows], Y[rows]


@pytest.mark.parametrize(("step", "hook"), [(3, "on_train_step_end"), (10, "on_train_epoch_end")])
def test_data_that_callbacks_tell_the_epoch_go_on_in_that_epoch(tmp_path, step, hook):
    """The first batch was looked at, and batches were left out, before the epoch was told."""
    rows: list[Any] = []

    def train(*callbacks: Any, resume: Any = None) -> Trainer:
        trainer, sampled = make(), Sampled()

        def tell(run_context: Any) -> None:
            sampled.set_epoch(run_context.original_args().cur_epoch_num)

        def look(run_context: Any) -> None:
            rows.append(np.asarray(run_context.original_args().train_dataset_element[0]))

        told = LambdaCallback(on_train_epoch_begin=tell, on_train_step_begin=look)
        trainer.train(3, sampled, [told, *callbacks], resume=resume)
        return trainer

    wanted = last(train(Watch()))
    whole = rows[:]
    rows.clear()
    train(Watch(hook, step, tmp_path / "cut.ckpt", stop="interrupt"))
    resumed = train(Watch(), resume=tmp_path / "cut.ckpt")

    assert np.array_equal(whole[0], X[np.random.default_rng(1).permutation(len(X))[:8]])
    assert all(map(np.array_equal, rows, whole))
    assert last(resumed) == wanted


def test_the_resumed_run_is_the_next_incarnation_and_keeps_the_lifecycle(tmp_path):
    first = Watch("on_train_step_end", 7, tmp_path / "cut.ckpt", stop="interrupt")
    make().fit(3, data(), data(), 1, first, run_id="mine")

    trainer = make()
    trainer.fit(3, data(), data(), 1, Watch(), resume=tmp_path / "cut.ckpt")

    log = trainer.bus.runs["mine"].entries()
    plan = Plan(
        mode="train", epochs=3, initial_epoch=1, batch_num=5, valid_batch_num=5,
        valid_frequency=1, resumed=Place(step=7, epoch=2, batches=2),
    )  # fmt: skip
    verify(plan, log)
    assert {one.event.incarnation for one in log} == {1}


def test_the_runs_own_time_goes_on(tmp_path):
    times = []
    look = LambdaCallback(on_train_step_end=lambda run_context: times.append(run_context.now()))
    first = Watch("on_train_step_end", 7, tmp_path / "cut.ckpt", stop="interrupt")
    make().train(3, data(), [look, first])
    stopped = times[-1]

    make().train(3, data(), [look, Watch()], resume=tmp_path / "cut.ckpt")

    assert all(time >= stopped for time in times[7:])


def test_a_callback_whose_state_is_missing_begins_anew_and_that_is_said(tmp_path, caplog):
    first = Watch("on_train_step_end", 7, tmp_path / "cut.ckpt", stop="interrupt")
    make().train(3, data(), first)

    make().train(3, data(), [History()], resume=tmp_path / "cut.ckpt")

    said = [record.getMessage() for record in caplog.records]
    assert any("holds no state of History" in line for line in said)
    assert any("holds the state of Watch, which is not listed" in line for line in said)


@pytest.mark.parametrize(
    ("resume", "error", "says"),
    [
        ("nowhere.ckpt", ArgumentError, "does not exist"),
        (3, ArgumentError, "must be a checkpoint's path"),
        ("net.ckpt", CheckpointError, "no run to go on with"),
        ("other.ckpt", CheckpointError, "does not fit"),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_anything_runs(tmp_path, resume, error, says):
    save_checkpoint({"w": jnp.ones(2)}, tmp_path / "net.ckpt")
    other = Trainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda out, y: (out - y).mean(), optax.sgd(1.0)
    )
    other.train(1, data(), Watch_free(tmp_path / "other.ckpt"))
    path = tmp_path / resume if isinstance(resume, str) else resume
    seen: list[Any] = []

    with pytest.raises(error, match=says):
        make().train(3, data(), LambdaCallback(on_train_begin=seen.append), resume=path)

    assert seen == []


def Watch_free(path: Path) -> Callback:
    return LambdaCallback(
        on_train_end=lambda run_context: run_context.save_checkpoint(path) and None
    )


def test_nothing_to_resume_from_begins_anew(tmp_path):
    result = make().train(1, data(), ModelCheckpoint("net", tmp_path), resume="latest")

    assert (result.status, result.step) == ("completed", 5)


@pytest.mark.parametrize("number", [5, 7])
def test_a_resumed_run_that_is_stopped_at_once_is_where_it_was(tmp_path, whole, number):
    seen, wanted, result = whole
    hook = "on_train_epoch_end" if number == 5 else "on_train_step_end"
    make().fit(3, data(), data(), 1, Watch(hook, number, tmp_path / "a.ckpt", stop="interrupt"))

    class Stops(Callback):
        def on_train_begin(self, run_context):
            run_context.request_stop(interrupts=True)

        def on_train_end(self, run_context):
            run_context.save_checkpoint(tmp_path / "b.ckpt")

    stopped = make().fit(3, data(), data(), 1, [Watch(), Stops()], resume=tmp_path / "a.ckpt")
    trainer = make()
    resumed = trainer.fit(3, data(), data(), 1, Watch(), resume=tmp_path / "b.ckpt")

    assert (stopped.step, stopped.epoch) == (number, -(-number // 5))
    assert last(trainer) == wanted
    assert resumed.history == result.history


def test_a_save_is_cut_after_its_own_event_and_before_the_next(tmp_path):
    """Callbacks behind the one that saves have seen that event, too."""
    path, last = tmp_path / "cut.ckpt", Watch()
    make().train(1, data(), [Watch("on_train_step_end", 3, path), last])

    first, second = Watch(), Watch()
    make().train(1, data(), [first, second], resume=path)

    assert (first.steps, second.steps) == (5, 5)


class Waits(Mapping[str, Any]):
    """Notes that can be read once they are ready."""

    def __init__(self) -> None:
        self.ready = Event()

    def __getitem__(self, name: str) -> Any:
        return name

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        assert self.ready.wait(60)
        return iter(["note"])


def test_a_state_that_changes_while_it_is_written_is_saved_as_it_was(tmp_path):
    """Nothing is written before the run has gone on."""

    class Grows(Callback):
        def __init__(self):
            self.seen, self.loaded, self.notes = [0], None, Waits()

        def on_train_step_end(self, run_context):
            self.seen[0] += 1
            if self.seen[0] == 2:
                first = tmp_path / "first.ckpt"
                run_context.save_checkpoint(first, wait=False, notes=self.notes)
                run_context.save_checkpoint(tmp_path / "cut.ckpt", wait=False)

        def on_train_epoch_end(self, run_context):
            self.notes.ready.set()

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.loaded = list(state["seen"])

    make().train(3, data(), Grows())
    grows = Grows()
    make().train(3, data(), grows, resume=tmp_path / "cut.ckpt")

    assert grows.loaded == [2]


def test_a_save_whose_event_fails_never_happens(tmp_path):
    futures = []

    class Saves(Callback):
        def on_train_step_end(self, run_context):
            futures.append(run_context.save_checkpoint(tmp_path / "cut.ckpt"))

    def fail(run_context):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        make().train(1, data(), [Saves(), LambdaCallback(on_train_step_end=fail)])

    assert futures[0].cancelled()
    assert not (tmp_path / "cut.ckpt").exists()


# Killed at random points


@contextmanager
def attempts(folder: Path) -> Iterator[Any]:
    script = Path(__file__).with_name("resumable.py")
    command = [sys.executable, str(script), str(folder)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY")}
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=plain) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


def run_until(server: Any, steps: int | None) -> bool:
    """One attempt, killed after so many steps; whether it came to its end by itself."""
    server.stdin.write(b"go\n")
    server.stdin.flush()
    text = b""
    while b">" not in text:
        text += _read(server)
    child = int(text[text.index(b"<") + 1 : text.index(b">")])
    while b"!" not in text:
        if steps is not None and text.count(b".") >= steps:
            os.kill(child, signal.SIGKILL)
            while b"!" not in text:
                text += _read(server)
            return False
        text += _read(server)
    return True


def _read(server: Any) -> bytes:
    found: bytes = os.read(server.stdout.fileno(), 1)
    assert found, server.stderr.read().decode()
    return found


def test_a_run_that_is_killed_again_and_again_is_the_run_that_nobody_killed(tmp_path):
    results = []
    for name, kills in (("whole", 0), ("killed", KILLS)):
        folder = tmp_path / name
        folder.mkdir()
        draw = random.Random(7)
        with attempts(folder) as server:
            killed = sum(not run_until(server, draw.randrange(12)) for _ in range(kills))
            assert killed == kills
            run_until(server, None)
        results.append(json.loads((folder / "result.json").read_text()))

    assert results[1] == results[0]
