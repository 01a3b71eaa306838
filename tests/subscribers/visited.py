"""Runs whose list has a `Remote`, served on a free port, and guests that come to them."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

from railbus.bus import EventBus
from railbus.bus.link import checked, reached
from railbus.bus.serving import serving
from railbus.bus.slot import Slot
from railbus.bus.tokens import Token
from railbus.schemas import Plan
from railbus.schemas.frames import FromClient, Hello, pack, unpack_from_service
from railbus.subscribers import Callback
from railbus.subscribers.attached import run_callback

from ..semantics.synthetic import Played, play

PLAN = Plan(mode="train", epochs=2, batch_num=3)
HELLO = Hello(version=(1, 0), role="participant", slot="tuner")
TOKEN = Token.new(name="guest")
WATCHES = Token.new(name="watcher", scopes={"observe"})


@dataclass
class Visit:
    """A guest in a thread of its own, and what it ended with."""

    thread: threading.Thread
    errors: list[BaseException] = field(default_factory=list)

    def join(self) -> BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.errors[0] if self.errors else None


class Place:
    """A served bus on which a run is to be played."""

    def __init__(self, bus: EventBus, url: str) -> None:
        self.bus, self.url = bus, url
        self.played = Played()
        self._visits: list[Visit] = []
        self._run: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def slot(self) -> Slot:
        slots = self.bus.runs["run"].slots
        assert slots is not None
        return slots["tuner"]

    def until_begun(self) -> None:
        """Wait until the run shows its slots."""
        until(lambda: "run" in self.bus.runs and self.bus.runs["run"].slots)

    def until_seated(self) -> None:
        """Wait until somebody has the slot."""
        until(lambda: self.slot._peer)

    def begin(self, callbacks: list[Callback], plan: Plan = PLAN) -> None:
        """Play the run in a thread."""
        run = threading.Thread(target=play, args=(callbacks, plan, self.bus, self.played))
        self._run = run
        run.start()

    def end(self) -> Played:
        """Wait for the run's end."""
        assert self._run is not None
        self._run.join(30)
        assert not self._run.is_alive()
        return self.played

    def visit(self, callback: Callback, **arguments: Any) -> Visit:
        """Let `callback` come as a guest."""
        given = {"url": self.url, "token": TOKEN.value, "slot": "tuner", **arguments}
        errors: list[BaseException] = []

        def run() -> None:
            try:
                run_callback(callback=callback, **given)
            except BaseException as error:
                errors.append(error)

        visit = Visit(threading.Thread(target=run), errors)
        visit.thread.start()
        return visit

    def socket(self, hello: Hello = HELLO, token: Token = TOKEN) -> ClientConnection:
        """A bare WebSocket that has said hello."""
        made = reached(checked(self.url), token.value)
        say(made, hello)
        return made


@contextmanager
def place() -> Iterator[Place]:
    bus = EventBus()
    with serving(bus, "127.0.0.1:0", [TOKEN, WATCHES]) as served:
        yield Place(bus, served.url)


@contextmanager
def process(url: str, kind: str) -> Iterator["subprocess.Popen[str]"]:
    """A guest in a process of its own, killed at the end."""
    script = Path(__file__).with_name("visitor.py")
    made = subprocess.Popen(
        [sys.executable, script, url, TOKEN.value, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with made:
            yield made
            made.kill()
    finally:
        made.kill()


def until(holds: Callable[[], object]) -> None:
    for _ in range(4000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to hold within 20 s")


def say(socket: ClientConnection, frame: FromClient) -> None:
    socket.send(pack(frame))


def hear(socket: ClientConnection) -> Any:
    data = socket.recv(timeout=10)
    assert isinstance(data, bytes)
    return unpack_from_service(data)
