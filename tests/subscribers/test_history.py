"""`History`: values with their epochs, run after run and over a resume."""

import numpy as np

from railbus.subscribers import Callback, History

from .scripted import DATA, Scripted, carried, make_trainer


class Resumes(History):
    def __init__(self, state):
        super().__init__()
        self._state = state

    def on_train_begin(self, run_context):
        super().on_train_begin(run_context)
        self.load_state_dict(self._state)


def test_values_stand_beside_their_epochs_where_mindspores_are_shorter_and_unaligned():
    history, trainer = History(), make_trainer({"accuracy": Scripted([0.5, 0.75])})

    trainer.fit(5, DATA, DATA, [2, 5], history)

    assert history.history["accuracy"] == [0.5, 0.75]
    assert history.epochs["accuracy"] == history.epochs["eval_loss"] == [2, 5]
    assert history.epochs["net_output"] == history.epoch["epoch"] == [1, 2, 3, 4, 5]


def test_net_output_is_the_loss_of_the_epochs_last_step():
    last = []

    class Last(Callback):
        def on_train_step_end(self, run_context):
            cb_params = run_context.original_args()
            if cb_params.cur_batch_num == len(DATA):
                last.append(float(cb_params.net_outputs))

    history = History()
    make_trainer().fit(2, DATA, DATA, callbacks=[Last(), history])

    assert history.history["net_output"] == last


def test_a_resumed_run_goes_on_with_what_a_snapshot_carried():
    first = History()
    make_trainer().fit(2, DATA, DATA, callbacks=first)
    before = {name: list(values) for name, values in first.history.items()}
    resumed = Resumes(carried(first.state_dict()))

    make_trainer().fit(3, DATA, DATA, callbacks=resumed, initial_epoch=2)

    assert resumed.epoch == {"epoch": [1, 2, 3]}
    assert resumed.epochs["mse"] == [1, 2, 3]
    assert np.array_equal(resumed.history["mse"][:2], before["mse"])
    assert first.history == before


def test_a_state_stays_as_it_is_while_runs_go_on():
    first = History()
    make_trainer().train(1, DATA, first)
    state = first.state_dict()

    make_trainer().train(3, DATA, Resumes(state))
    make_trainer().train(2, DATA, first)

    assert state["epoch"] == {"epoch": [1]}
    assert state["epochs"] == {"net_output": [1]}
