"""A real run that is watched and steered from outside while it is on."""

import json
import re
import threading
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from flax import nnx

from railbus.bus.client import attach
from railbus.bus.serving import serving
from railbus.bus.tokens import Token
from railbus.schemas import Gap
from railbus.schemas.errors import RemoteError
from railbus.subscribers import Callback, LambdaCallback
from railbus.subscribers.attached import run_callback
from railbus.trainer import Trainer

DATA = [(np.ones((2, 1), np.float32), np.full((2, 1), k, np.float32)) for k in range(20)]


def make_trainer() -> Trainer:
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.01)
    return Trainer(network, lambda out, y: ((out - y) ** 2).mean(), optimizer)


def post(url: str, token: str, path: str, body: dict[str, Any]) -> int:
    request = urllib.request.Request(
        url.replace("ws://", "http://") + path,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(answer.status)


def test_fit_says_once_how_to_watch_it_and_the_run_can_be_stopped_from_there(capsys):
    said: list[str] = []
    seen: list[Any] = []
    readers: list[threading.Thread] = []

    def watch(run_context: Any) -> None:
        if run_context.original_args().cur_step_num == 3:
            said.append(capsys.readouterr().out)
            found = re.search(r"\$\(cat (.*)\)\" http(://.*)/runs", said[0])
            assert found is not None
            token, url = Path(found[1]).read_text().strip(), "ws" + found[2]
            events = attach(url, token=token, since="begin")
            seen.append(next(events))
            readers.append(threading.Thread(target=lambda: seen.extend(events)))
            readers[0].start()
            assert post(url, token, "/runs/run/stop", {"reason": "enough"}) == 202

    trainer = make_trainer()
    result = trainer.fit(
        5,
        DATA,
        callbacks=LambdaCallback(on_train_step_end=watch),
        run_id="run",
        serve="127.0.0.1:0",
    )
    readers[0].join(10)

    assert said[0].count("\n") == 1 and said[0].startswith("watch this run: curl")
    assert (result.status.name, result.by, result.reason, result.step) == (
        "STOPPED",
        "operator",
        "enough",
        3,
    )
    assert seen == [entry.event for entry in trainer.bus.runs["run"].entries()]


def test_a_value_set_from_outside_is_read_by_the_next_step_and_recorded():
    trainer, token = make_trainer(), Token.new(name="tuner")
    with serving(trainer.bus, tokens=[token]) as served:

        def act(run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 4:
                body = {"name": "learning_rate", "value": 0.5}
                assert post(served.url, token.value, "/runs/run/params", body) == 202

        trainer.train(1, DATA, LambdaCallback(on_train_step_end=act), run_id="run")

    log = trainer.bus.runs["run"].entries()
    rates = [entry.event.cb_params.learning_rate for entry in log if entry.step]
    changes = [(entry.step, by) for entry in log for by, _ in entry.decision.patches]
    assert changes == [(4, "tuner")]
    assert set(rates[:8]) == {np.float32(0.01)} and set(rates[8:]) == {np.float32(0.5)}


def test_sixteen_observers_one_of_them_hostile_leave_the_parameters_as_they_are():
    alone = make_trainer()
    alone.train(10, DATA, run_id="run")
    trainer, tokens = make_trainer(), [Token.new() for _ in range(3)]
    seen: list[list[Any]] = [[] for _ in range(15)]
    with serving(trainer.bus, tokens=tokens) as served, ExitStack() as stack:
        begun, threads = threading.Event(), list[threading.Thread]()

        def follow(k: int) -> None:
            events = stack.enter_context(
                attach(served.url, token=tokens[k % 2].value, since="begin", run="run")
            )
            begun.wait(10)
            seen[k].extend(events)

        def harass() -> None:
            begun.wait(10)
            for _ in range(50):
                with pytest.raises(RemoteError):
                    next(attach(served.url, token=Token.new().value))
                with suppress(RemoteError):
                    run_callback(served.url, Callback(), token=tokens[2].value, slot="tuner")

        for k in range(15):
            threads.append(threading.Thread(target=follow, args=(k,)))
        threads.append(threading.Thread(target=harass))
        for thread in threads:
            thread.start()
        begin = LambdaCallback(on_train_begin=lambda run_context: begun.set())
        trainer.train(10, DATA, begin, run_id="run")
        for thread in threads:
            thread.join(20)

    kernel, bias = trainer.network.kernel[...], trainer.network.bias[...]
    assert np.asarray(kernel).tobytes() == np.asarray(alone.network.kernel[...]).tobytes()
    assert np.asarray(bias).tobytes() == np.asarray(alone.network.bias[...]).tobytes()
    log = [entry.event.seq for entry in trainer.bus.runs["run"].entries()]
    for items in seen:
        assert [item.seq for item in items if not isinstance(item, Gap)] == log
