"""Callbacks of all kinds across a resume: what they saw and printed is what one run shows."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railbus.subscribers import (
    Callback,
    LossMonitor,
    TimeMonitor,
    between,
    every,
    once,
    when,
)

from .watched import Watch, data, last, make


class Notes(Callback):
    """The steps that it has had, over all parts of the run."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_begin(self, run_context):
        self.steps = []

    def on_train_step_end(self, run_context):
        self.steps.append(run_context.original_args().cur_step_num)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = list(state["steps"])


class Awaits(Notes):
    async def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


class Bounded(Notes):
    deadline = 60.0


class Thrice(Notes):
    """Patches at every third of its events."""

    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        if len(self.steps) % 3 == 0:
            params = run_context.original_args()
            params.learning_rate = params.learning_rate * 0.9
            params.thirds = len(self.steps) // 3


def odd(run_context: Any) -> bool:
    return bool(run_context.original_args().cur_step_num % 2)


KINDS: dict[str, Callable[[Callback], Callback]] = {
    "plain": lambda inner: inner,
    "every": lambda inner: every(2, inner),
    "every epoch": lambda inner: every(2, inner, "epochs"),
    "once": once,
    "once later": lambda inner: once(between(4, 14, inner)),
    "no seconds": lambda inner: every(1e-9, inner, "seconds"),
    "an hour": lambda inner: every(3600, inner, "seconds"),
    "between": lambda inner: between(3, 9, inner),
    "when": lambda inner: when(odd, inner),
    "nested": lambda inner: every(2, when(odd, every(1, inner, "epochs"))),
}


def run(
    make_list: Callable[[], list[Any]], path: Path, cut: tuple[str, int] | None
) -> tuple[list[Any], Any]:
    """The steps of each, and the last state: in one run, or in two around `cut`."""
    options: dict[str, Any] = {}
    if cut is not None:
        ends = Watch(cut[0], cut[1], path, "interrupt")
        make(block_steps=4).fit(3, data(), data(), 1, [ends, *make_list()])
        options["resume"] = path
    trainer, callbacks = make(), make_list()
    trainer.fit(3, data(), data(), 1, [Watch(), *callbacks], **options)
    return [one.steps for one in callbacks], last(trainer)


CUTS = [("on_train_step_end", 1), ("on_train_step_end", 8), ("on_train_epoch_end", 10)]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", [Notes, Thrice, Awaits])
def test_filtered_callbacks_of_one_class_each_go_on(tmp_path, cut, kind):
    def make_list() -> list[Any]:
        return [around(kind()) for around in KINDS.values()]

    whole = run(make_list, tmp_path / "cut.ckpt", None)
    parts = run(make_list, tmp_path / "cut.ckpt", cut)

    assert parts == whole
    assert whole[0][:2] == [[*range(1, 16)], [*range(2, 16, 2)]]
    assert whole[0][3:5] == [[1], [4]]


@pytest.mark.parametrize("cut", CUTS)
def test_callbacks_with_deadlines_and_async_hooks_go_on(tmp_path, cut):
    def make_list() -> list[Any]:
        return [Bounded(), Awaits(), Notes(), Awaits()]

    steps, state = run(make_list, tmp_path / "cut.ckpt", cut)

    assert steps == [[*range(1, 16)]] * 4
    assert state == run(make_list, tmp_path / "cut.ckpt", None)[1]


@pytest.mark.parametrize("hook", ["on_train_step_end", "on_train_epoch_end"])
def test_every_cut_gives_the_same_acks_lines_and_state(tmp_path, capsys, hook):
    def acks(trainer: Any) -> list[Any]:
        """What callbacks have answered, from the first step after the cut on."""
        entries = trainer.bus.runs["mine"].entries()
        found = [(one.event.hook, one.event.cb_params, one.decision) for one in entries]
        return [(hook, shown.get("cur_step_num"), one.patches) for hook, shown, one in found]

    def printed() -> list[str]:
        return list(capsys.readouterr().out.splitlines())

    def fit(watch: Watch, **options: Any) -> tuple[Any, list[str], Any]:
        trainer = make()
        trainer.fit(
            3, data(), data(), 1, [watch, Thrice(), LossMonitor()], run_id="mine", **options
        )
        return acks(trainer), printed(), last(trainer)

    whole, lines, state = fit(Watch())
    for step in range(1, 16) if hook == "on_train_step_end" else (5, 10, 15):
        path = tmp_path / f"{step}.ckpt"
        _, before, _ = fit(Watch(hook, step, path))
        rest, after, end = fit(Watch(), resume=path)

        assert before == lines
        assert end == state
        assert after == lines[len(lines) - len(after) :]
        at = next(k for k, one in enumerate(whole) if one[:2] == (hook, step))
        assert rest[len(rest) - len(whole) + at + 1 :] == whole[at + 1 :]


def test_the_time_of_a_resumed_epoch_is_that_of_both_parts(tmp_path, capsys):
    """It was the second part's, which has the second part's steps only."""
    path = tmp_path / "cut.ckpt"
    make().train(2, data(), [TimeMonitor(), Watch("on_train_step_end", 8, path, "interrupt")])
    capsys.readouterr()
    times: list[float] = []

    class Now(Callback):
        def on_train_step_begin(self, run_context):
            times.append(run_context.now())

        def on_train_step_end(self, run_context):
            times.append(run_context.now())

    make().train(2, data(), [TimeMonitor(), Watch(), Now()], resume=path)

    total, step = map(float, re.findall(r"time: ([\d.]+) ms", capsys.readouterr().out))
    assert total > (times[-1] - times[0]) * 1e3
    assert step == pytest.approx(total / 5, abs=0.001)
