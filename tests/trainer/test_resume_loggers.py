"""Files of a run that was interrupted: those of the run that nobody interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest

from railbus.subscribers import Callback, CSVLogger, JSONLogger, LambdaCallback

from .watched import Watch, data, make


def loggers(folder: Path, append: bool) -> list[Callback]:
    table = CSVLogger(folder / "log.csv", append, every=1)
    return [table, JSONLogger(folder / "log.jsonl", append)]


def files(folder: Path) -> list[Any]:
    """The tables as they are, and the lines without their times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("time", "wall_time")
    plain = [{name: one[name] for name in one if name not in times} for one in lines]
    return [(folder / name).read_bytes() for name in ("log.csv", "log_steps.csv")] + plain


def fit(folder: Path, append: bool, *more: Callback, **options: Any) -> None:
    callbacks = [*more, *loggers(folder, append)]
    make().fit(3, data(), data(), [1, 3], callbacks, run_id="mine", **options)


def fail(run_context: Any) -> None:
    if run_context.original_args().cur_step_num == 13:
        raise ArithmeticError("bad luck")


CUTS = [("on_train_step_end", k) for k in (2, 5, 7, 12)] + [("on_train_epoch_end", 10)]


@pytest.mark.parametrize(("hook", "number"), CUTS)
@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("how", ["interrupted", "crashed later"])
def test_the_loggers_files_are_those_of_the_whole_run(tmp_path, hook, number, append, how):
    """They began anew, or had rows twice, and an epoch's loss was that of its later steps."""
    path = tmp_path / "cut.ckpt"
    fit(tmp_path / "whole", append, Watch())
    folder = tmp_path / "parts"
    if how == "interrupted":
        fit(folder, append, Watch(hook, number, path, "interrupt"))
    else:
        with pytest.raises(ArithmeticError):
            fit(folder, append, Watch(hook, number, path), LambdaCallback(on_train_step_end=fail))

    fit(folder, append, Watch(), resume=path)

    first = append and number <= 5  # rows of epochs may be another run's, as far as one can tell
    assert files(folder)[first:] == files(tmp_path / "whole")[first:]


def test_rows_of_other_runs_stay_where_they_are(tmp_path):
    path = tmp_path / "cut.ckpt"
    for folder in (tmp_path / "whole", tmp_path / "parts"):
        make().fit(3, data(), data(), [1, 3], loggers(folder, False), run_id="other")
    fit(tmp_path / "whole", True, Watch())
    fit(tmp_path / "parts", True, Watch("on_train_step_end", 3, path, "interrupt"))

    fit(tmp_path / "parts", True, Watch(), resume=path)

    assert files(tmp_path / "parts")[1:] == files(tmp_path / "whole")[1:]
    rows = (tmp_path / "parts" / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:4]] == ["1", "2", "3"]


def test_where_a_run_is_gone_on_with_is_shown_while_callbacks_set_themselves_up(tmp_path):
    seen: list[Any] = []

    def note(run_context):
        params = run_context.original_args()
        facts = (params.get(name) for name in ("resumed_step", "resumed_epoch"))
        seen.append((run_context.event.hook.value, *facts))

    hooks = ("on_train_begin", "on_train_epoch_begin", "on_train_step_begin", "on_train_end")
    look = LambdaCallback(**dict.fromkeys(hooks, note))
    make().train(2, data(), Watch("on_train_step_end", 8, tmp_path / "cut.ckpt"))

    make().train(2, data(), [look, Watch()], resume=tmp_path / "cut.ckpt")

    assert seen == [
        ("on_train_begin", 8, 1),
        ("on_train_epoch_begin", 8, 1),
        ("on_train_step_begin", None, None),
        ("on_train_step_begin", None, None),
        ("on_train_end", None, None),
    ]


def test_the_mean_loss_is_shown_at_the_epochs_end_only():
    seen: list[Any] = []

    def note(run_context):
        seen.append(run_context.original_args().get("epoch_loss"))

    hooks = ("on_train_epoch_begin", "on_train_epoch_end", "on_train_end")
    result = make().train(2, data(), LambdaCallback(**dict.fromkeys(hooks, note)))

    losses = [one["loss"] for one in result.history]
    assert seen == [None, losses[0], None, losses[1], None]
