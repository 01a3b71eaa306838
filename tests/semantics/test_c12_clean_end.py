"""C12: everything is closed after the terminal event, on exception, cancellation and SIGTERM."""

import os
import signal
import subprocess
import sys
import threading

import anyio
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback
from railbus.trainer import Trainer

DATA = [(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))] * 3


def make_trainer() -> Trainer:
    network = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optax.sgd(0.1))


def held() -> tuple[set[str], set[str]]:
    """Threads of ours and open files, by name."""
    threads = {one.name for one in threading.enumerate()}
    files = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _open(fd)}
    return threads, {name for name in files if "socket" in name or "eventpoll" in name}


def _open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


class Fails(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_step_end(self, run_context) -> None:
        raise self.error


class Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def __exit__(self, *error) -> None:
        self.notes.append("exit")

    def on_train_step_end(self, run_context) -> None:
        self.notes.append("step")

    def on_train_end(self, run_context) -> None:
        self.notes.append("end")

    def on_exception(self, run_context, error) -> None:
        self.notes.append(type(error).__name__)


def test_nothing_is_left_after_a_normal_end():
    trainer = make_trainer()
    trainer.train(1, DATA)
    before = held()

    trainer.train(1, DATA, [Notes(), Notes()])

    assert held() == before


@pytest.mark.parametrize("error", [ValueError("bad luck"), KeyboardInterrupt(), SystemExit(3)])
def test_nothing_is_left_after_an_exception_and_callbacks_are_exited(error):
    trainer, notes = make_trainer(), Notes()
    trainer.train(1, DATA)
    before = held()

    with pytest.raises(type(error)) as caught:
        trainer.train(1, DATA, [notes, Fails(error)])

    assert caught.value is error
    assert notes.notes == ["step", type(error).__name__, "exit"]
    assert held() == before


async def test_cancelling_the_scope_is_a_graceful_stop():
    trainer, notes = make_trainer(), Notes()
    going = anyio.Event()

    class Tells(Callback):
        async def on_train_step_end(self, run_context) -> None:
            going.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:

            async def host() -> None:
                async with trainer.start_train(10**6, DATA, [notes, Tells()]):
                    await anyio.sleep_forever()

            tasks.start_soon(host)
            await going.wait()
            tasks.cancel_scope.cancel()

    assert notes.notes[-2:] == ["end", "exit"]
    assert trainer.train(1, DATA).status == "completed"


SCRIPT = """
import numpy as np, optax, sys
from flax import nnx
from railbus.subscribers import Callback
from railbus.trainer import Trainer
class Tells(Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 3: print("going", flush=True)
data = [(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))] * 3
trainer = Trainer(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), lambda o, y: ((o - y) ** 2).mean(), optax.sgd(0.1))
trainer.train(10**9, data, [Tells()])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_act_as_without_railbus(number):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
