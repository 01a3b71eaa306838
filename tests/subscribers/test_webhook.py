"""`Webhook` against a real server."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from railbus.subscribers import Callback, LossMonitor, Webhook
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]
WAIT = 20.0  # seconds until a test gives up


def make_trainer(factor: float = 1.0) -> Trainer:
    network = nnx.Linear(1, 1, rngs=nnx.Rngs(0))

    def loss_fn(out, y):
        return ((out - y) ** 2).mean() * jnp.float32(factor)

    return Trainer(network, loss_fn, optax.sgd(0.01), {"mse"})


class Server(ThreadingHTTPServer):
    """Answers with `codes` in turn, then with 200; keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.codes: list[int] = []
        self.messages: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.go = threading.Event()
        self.go.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?token=secret"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.server.go.wait(WAIT)
        self.server.messages.append(json.loads(body))
        self.server.headers.append(self.headers)
        self.send_response(self.server.codes.pop(0) if self.server.codes else 200)
        self.send_header("Location", self.server.url)  # for a redirection
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """It is quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_begin_and_end_of_a_run_are_posted(server):
    hook = Webhook(server.url, headers={"Authorization": "Bearer me"})
    result = make_trainer().fit(2, DATA, DATA, callbacks=hook, run_id="mine")

    begin, end = server.messages
    assert (begin["event"], begin["run_id"], begin["step"], begin["loss"]) == (
        "begin", "mine", 0, None
    )  # fmt: skip
    assert (end["event"], end["status"], end["epoch"], end["step"]) == ("end", "completed", 2, 8)
    assert end["results"]["mse"] == pytest.approx(result.metrics["mse"])
    assert end["time"] - begin["time"] == pytest.approx(end["elapsed"] - begin["elapsed"], abs=1e-3)
    assert {one["Authorization"] for one in server.headers} == {"Bearer me"}
    assert {one["Content-Type"] for one in server.headers} == {"application/json"}


def test_only_the_events_asked_for_are_posted(server):
    make_trainer().fit(2, DATA, DATA, callbacks=Webhook(server.url, ["epoch"]))

    assert [(one["event"], one["epoch"]) for one in server.messages] == [("epoch", 1), ("epoch", 2)]


def test_a_failure_is_posted_with_its_reason(server):
    class Fails(Callback):
        def on_train_step_end(self, run_context) -> None:
            raise ValueError("bad luck")

    with pytest.raises(ValueError, match="bad luck"):
        make_trainer().train(1, DATA, [Webhook(server.url), Fails()])

    failure = server.messages[-1]
    assert (failure["event"], failure["status"]) == ("failure", "failed")
    assert (failure["reason"], failure["by"]) == ("ValueError: bad luck", "Fails")


def test_a_loss_that_is_no_number_is_posted_as_text(server):
    make_trainer(np.nan).train(1, DATA, [Webhook(server.url), LossMonitor(0)])

    end = server.messages[-1]
    assert (end["loss"], end["status"], end["by"]) == ("nan", "stopped", "LossMonitor")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_message_is_sent_again_until_it_is_taken(server, code, caplog):
    server.codes = [code, code]
    make_trainer().train(1, DATA, Webhook(server.url, ["end"], backoff=1e-3))

    assert [one["event"] for one in server.messages] == ["end"] * 3
    assert caplog.records == []


@pytest.mark.parametrize(("code", "attempts"), [(503, 3), (404, 1), (302, 1)])
def test_what_cannot_be_delivered_is_one_warning_that_tells_no_secret(
    server, code, attempts, caplog
):
    server.codes = [code] * 9
    hook = Webhook(server.url, ["begin"], retries=2, backoff=1e-3)
    result = make_trainer().train(1, DATA, hook)

    assert result.status == "completed"
    assert len(server.messages) == attempts
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("'begin' was not delivered to 127.0.0.1: HTTP Error")
    assert "secret" not in record.getMessage()


def test_no_server_does_not_fail_the_run(server, caplog):
    server.server_close()
    result = make_trainer().train(1, DATA, Webhook(server.url, backoff=1e-3))

    assert result.status == "completed"
    assert len(caplog.records) == 2


def test_a_server_that_hangs_does_not_hold_up_the_run(server):
    server.go.clear()
    reached = []

    class Ends(Callback):
        def on_train_end(self, run_context) -> None:
            reached.append(run_context.original_args().cur_step_num)
            server.go.set()

    make_trainer().train(2, DATA, [Webhook(server.url, timeout=WAIT), Ends()])

    assert reached == [8]
    assert [one["event"] for one in server.messages] == ["begin", "end"]


def test_a_lone_eval_posts_nothing(server):
    class Fails(Callback):
        def on_eval_step_end(self, run_context) -> None:
            raise ValueError("bad luck")

    make_trainer().eval(DATA, Webhook(server.url))
    with pytest.raises(ValueError):
        make_trainer().eval(DATA, [Webhook(server.url), Fails()])

    assert server.messages == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": 3},
        {"url": "ftp://host/x"},
        {"url": "file:///etc/passwd"},
        {"url": "http:///x"},
        {"url": "http://host:port/x"},
        {"events": "begin"},
        {"events": ["step"]},
        {"headers": ["a"]},
        {"headers": {"a": 1}},
        {"headers": {"a": "b\r\nc: d"}},
        {"retries": -1},
        {"retries": True},
        {"timeout": 0},
        {"backoff": 0},
        {"unknown": 1},
    ],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        Webhook(**{"url": "http://host", **arguments})
