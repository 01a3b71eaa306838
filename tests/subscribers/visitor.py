"""Another process that takes part in a run: `visitor.py URL TOKEN KIND`, without JAX."""

import sys
from pathlib import Path

from railbus.subscribers import Callback, RunContext
from railbus.subscribers.attached import run_callback


class Steers(Callback):
    """Sets the learning rate after some steps, adds a key of its own, stops after step 17."""

    def on_train_step_end(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        step = cb_params.cur_step_num
        if step % 5 == 0:
            cb_params.learning_rate = 0.1 / step
            cb_params.halved = [step, cb_params.net_outputs / 2]
        if step == 17:
            run_context.request_stop("seventeen is enough")


class Sticks(Callback):
    """Says which step it is at, and in the third waits for a line on its standard input."""

    def on_train_step_end(self, run_context: RunContext) -> None:
        step = run_context.original_args().cur_step_num
        print(step, flush=True)
        if step == 3:
            sys.stdin.readline()
            run_context.request_stop("too late")


if __name__ == "__main__":
    url, token, kind = sys.argv[1:]
    run_callback(url, {"steers": Steers, "sticks": Sticks}[kind](), token=token, slot="tuner")
    print("jax" in sys.modules, Path(__file__).stem, flush=True)
