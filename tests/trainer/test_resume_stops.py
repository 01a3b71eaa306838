"""Resuming a run that was stopped: a stop of a callback stays, an interruption does not."""

from typing import Any

import anyio
import pytest

from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import StopRequest
from railbus.schemas.lifecycle import Place, Plan, verify
from railbus.subscribers import Callback, EarlyStopping, LambdaCallback, StopAtStep
from railbus.trainer import RunResult

from ..subscribers.scripted import DATA, Scripted, make_trainer
from .watched import Watch, data, last, make

END = ("status", "reason", "by", "at", "step", "epoch", "history", "metrics")


def ending(result: RunResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in END}


class Saves(Callback):
    """Saves in `hook` when the run was stopped."""

    def __init__(self, hook: str, path: Any) -> None:
        setattr(self, hook, lambda run_context: self.save(run_context, path))

    def save(self, run_context, path):
        if run_context.get_stop_requested("train"):
            run_context.save_checkpoint(path)
            self.step = run_context.original_args().cur_step_num


STOPS = [
    ("on_train_step_begin", 7),
    ("on_train_step_end", 7),
    ("on_train_step_end", 10),
    ("on_train_epoch_begin", 5),
    ("on_train_epoch_end", 10),
    ("on_train_epoch_end", 15),
]


@pytest.mark.parametrize(("hook", "number"), STOPS)
@pytest.mark.parametrize("saved", ["on_train_epoch_end", "on_train_end"])
def test_a_run_that_a_callback_has_stopped_is_only_closed(tmp_path, hook, number, saved):
    """It trained on once."""

    class Stops(Watch):
        def note(self, run_context):
            super().note(run_context)
            if self.seen[-1][:3:2] == (hook, number):
                run_context.request_stop("enough")

    trainer, first, path = make(block_steps=4), Stops(), tmp_path / "cut.ckpt"
    stopped = trainer.fit(3, data(), data(), 1, [first, Saves(saved, path)])
    wanted = last(trainer)

    again, second = make(), Watch()
    resumed = again.fit(3, data(), data(), 1, [second, Saves(saved, path)], resume=path)

    assert ending(resumed) == ending(stopped)
    assert (resumed.status, resumed.stats.steps) == ("stopped", 0)
    assert last(again) == wanted
    rest = [one for one in second.seen if one[0] not in ("on_train_begin", "on_train_epoch_begin")]
    assert rest == first.seen[len(first.seen) - len(rest) :]
    assert rest[-1][0] == "on_train_end"


def test_the_closing_of_a_resumed_run_keeps_the_lifecycle_and_shows_the_stop(tmp_path, caplog):
    asked: list[bool] = []
    look = LambdaCallback(
        on_train_epoch_end=lambda run_context: asked.append(run_context.get_stop_requested())
    )
    path = tmp_path / "cut.ckpt"
    ends = Watch("on_train_step_end", 7, path, "end")
    first = make().fit(3, data(), data(), 1, ends, run_id="mine")

    trainer = make()
    trainer.fit(3, data(), data(), 1, [Watch(), look], resume=path)

    assert first.at is not None
    stop = StopRequest(by="Watch", at=first.at, reason="enough", scope="train")
    plan = Plan(
        mode="train", epochs=3, initial_epoch=1, batch_num=5, valid_batch_num=5,
        valid_frequency=1, resumed=Place(step=7, epoch=2, batches=2, stop=stop),
    )  # fmt: skip
    verify(plan, trainer.bus.runs["mine"].entries())
    assert asked == [True]
    assert "run mine was stopped by Watch: enough; no further step is trained" in caplog.messages


def test_early_stopping_ends_the_resumed_run_where_it_ended_the_first(tmp_path):
    values = [0.5, 0.4, 0.4, 0.9]

    def run(**options: Any) -> tuple[RunResult, EarlyStopping, Any]:
        trainer = make_trainer({"accuracy": Scripted(values)})
        stopping = EarlyStopping("accuracy", patience=2, restore_best_weights=True)
        callbacks = [stopping, Saves("on_train_end", tmp_path / "cut.ckpt")]
        result = trainer.fit(4, DATA, DATA, callbacks=callbacks, **options)
        return result, stopping, trainer.params["kernel"].tolist()

    result, stopping, params = run()
    resumed, again, restored = run(resume=tmp_path / "cut.ckpt")

    assert ending(resumed) == ending(result)
    assert (resumed.by, resumed.epoch, resumed.stats.steps) == ("EarlyStopping", 3, 0)
    assert restored == params
    assert (again.stopped_epoch, again.best_epoch) == (stopping.stopped_epoch, 1) == (3, 1)


def test_a_stop_beside_an_interruption_is_not_forgotten(tmp_path):
    path = tmp_path / "cut.ckpt"
    callbacks = [
        Watch("on_train_step_end", 7, path, "interrupt"),
        LambdaCallback(
            on_train_step_end=lambda run_context: (
                run_context.request_stop("good enough")
                if run_context.original_args().cur_step_num == 7
                else None
            )
        ),
    ]
    first = make().train(3, data(), callbacks)

    resumed = make().train(3, data(), Watch(), resume=path)

    assert first.by == "Watch"
    assert (resumed.by, resumed.reason, resumed.step) == ("LambdaCallback", "good enough", 7)


class Fails(Callback):
    on_error = "stop"

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 7:
            raise ArithmeticError("bad luck")


def test_a_run_that_an_error_has_stopped_trains_on(tmp_path):
    path = tmp_path / "cut.ckpt"
    stopped = make().train(3, data(), [Fails(), Saves("on_train_end", path)])

    resumed = make().train(3, data(), resume=path)

    assert (stopped.by, stopped.step) == ("Fails", 7)
    assert (resumed.status, resumed.step) == ("completed", 15)


@pytest.mark.parametrize("how", ["asked", "cancelled"])
async def test_a_run_that_was_stopped_from_outside_trains_on(tmp_path, how):
    saves, seen = Saves("on_train_end", tmp_path / "cut.ckpt"), 0
    with anyio.fail_after(60), anyio.CancelScope() as scope:
        async with make(block_steps=1).start_train(10**5, data(), [saves]) as run:
            async for _ in run.events({"on_train_step_end"}):
                seen += 1
                if seen == 3:
                    run.request_stop() if how == "asked" else scope.cancel()

    ends = StopAtStep(step=saves.step + 2)
    result = make().train(10**5, data(), ends, resume=tmp_path / "cut.ckpt")

    assert (result.by, result.stats.steps) == ("StopAtStep", 2)


@pytest.mark.parametrize(
    ("hook", "number"), [("on_train_step_end", 12), ("on_train_epoch_end", 15)]
)
def test_a_checkpoint_beyond_the_last_epoch_is_refused_before_anything_runs(tmp_path, hook, number):
    """The run was "completed" at once."""
    path, entered = tmp_path / "cut.ckpt", []

    class Enters(Callback):
        def __enter__(self):
            entered.append(self)

    make().train(3, data(), Watch(hook, number, path))

    with pytest.raises(ArgumentError, match="has come to epoch 3; got 2"):
        make().train(2, data(), Enters(), resume=path)

    assert entered == []


def test_a_run_that_is_over_has_nothing_left_to_train_and_says_so(tmp_path, caplog):
    path = tmp_path / "cut.ckpt"
    make().train(3, data(), Watch("on_train_end", 15, path), run_id="mine")
    watch = Watch()

    with caplog.at_level("INFO"):
        result = make().train(3, data(), watch, resume=path)

    assert (result.status, result.step, result.stats.steps) == ("completed", 15, 0)
    assert [one[0] for one in watch.seen] == ["on_train_begin", "on_train_end"]
    assert "run mine is over: all 3 epochs are trained" in caplog.messages


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("outside", [False, True])
async def test_a_validation_that_was_interrupted_is_done_again(tmp_path, epoch, outside):
    """The results of its first batches stayed in the history and in callbacks' best values."""
    path = tmp_path / "cut.ckpt"

    class Interrupts(Saves):
        run: Any = None

        def on_eval_step_end(self, run_context):
            cb_params = run_context.original_args()
            if (cb_params.cur_epoch_num, cb_params.cur_step_num) != (epoch, 2):
                return
            if outside:
                self.run.request_stop()
            else:
                run_context.request_stop(scope="train", interrupts=True)

        def resume_points(self, latest):
            return []

    first, second, interrupts = Watch(), Watch(), Interrupts("on_train_end", path)
    best, again = EarlyStopping(patience=9), EarlyStopping(patience=9)
    trainer = make()
    whole = trainer.fit(3, data(), data(), 1, [first, best])
    wanted = last(trainer)
    callbacks = [Watch(), EarlyStopping(patience=9), interrupts]
    async with make().start_fit(3, data(), data(), 1, callbacks) as interrupts.run:
        pass
    trainer = make()
    resumed = trainer.fit(3, data(), data(), 1, [second, again], resume=path)

    assert ending(resumed) == ending(whole)
    assert last(trainer) == wanted
    assert again.state_dict() == best.state_dict()
    assert second.seen[2:] == first.seen[len(first.seen) - len(second.seen) + 2 :]
