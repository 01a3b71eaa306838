"""`LambdaCallback`: each of the twelve hooks, plain or asynchronous."""

import pytest

from railbus.schemas.hooks import Hook
from railbus.subscribers import LambdaCallback

from .scripted import DATA, make_trainer

HOOKS = [hook.value for hook in Hook if hook is not Hook.EXCEPTION]


def recording(seen, asynchronous):
    def note(run_context):
        seen.append(run_context.event.hook.value)

    async def note_later(run_context):
        note(run_context)

    return LambdaCallback(**dict.fromkeys(HOOKS, note_later if asynchronous else note))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_twelve_hooks_are_called_where_mindspores_is_left_out_of_validations(asynchronous):
    seen: list[str] = []

    make_trainer().fit(1, DATA[:1], DATA[:1], callbacks=recording(seen, asynchronous))

    evaluation = [f"on_eval_{it}" for it in "begin epoch_begin step_begin step_end".split()]
    assert seen == [
        *(f"on_train_{it}" for it in "begin epoch_begin step_begin step_end".split()),
        *evaluation,
        "on_eval_epoch_end",
        "on_eval_end",
        "on_train_epoch_end",
        "on_train_end",
    ]


def test_a_hook_that_is_none_is_as_if_not_given():
    callback = LambdaCallback(on_train_begin=None)

    assert make_trainer().train(1, DATA, callback).status == "completed"


def test_a_function_may_ask_for_a_stop():
    stop = LambdaCallback(on_train_step_end=lambda run_context: run_context.request_stop("enough"))

    result = make_trainer().train(3, DATA, stop)

    assert (result.step, result.reason, result.by) == (1, "enough", "LambdaCallback")


@pytest.mark.parametrize("name", ["step_end", "on_step_end", "on_exception", "on_error"])
def test_what_is_no_hook_of_training_or_evaluation_is_refused(name):
    with pytest.raises(TypeError, match=f"'{name}' is no hook"):
        LambdaCallback(**{name: print})


def test_what_cannot_be_called_is_refused_where_mindspores_takes_it():
    with pytest.raises(TypeError, match="on_train_end must be callable, got int 3"):
        LambdaCallback(on_train_end=3)  # type: ignore[arg-type]  # refused on purpose
