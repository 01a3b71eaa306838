"""A run that a test commits by hand, on a bus that a real server shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from anyio.from_thread import start_blocking_portal
from websockets.sync.client import ClientConnection, connect

from railbus.bus import EventBus, EventLog
from railbus.bus.client import Attachment, attach
from railbus.bus.serving import serving
from railbus.bus.tokens import Token, Tokens
from railbus.schemas import Decision, Event, Hook, pack
from railbus.schemas.errors import ArgumentError, NotTraced, ReadOnlyParam
from railbus.schemas.events import Committed
from railbus.schemas.frames import (
    SUBPROTOCOL,
    FromClient,
    Hello,
    pack as pack_frame,
    unpack_from_service,
)


def entry(seq: int, hook: Hook = Hook.TRAIN_STEP_END, run_id: str = "run", size: int = 0):
    """A committed event."""
    snapshot = pack({"cur_step_num": seq, "loss": 0.5, "blob": bytes(size)})
    event = Event(
        run_id=run_id,
        incarnation=0,
        seq=seq,
        hook=hook,
        time_ns=seq,
        wall_ns=seq,
        snapshot=snapshot,
    )
    return Committed(event, Decision(run_id=run_id, seq=seq, hook=hook), (), seq, 1)


@dataclass
class Steered:
    """What was asked of a run."""

    stops: list[tuple[str, str]] = field(default_factory=list)
    patches: list[tuple[str, float, str]] = field(default_factory=list)

    def request_stop(self, by: str, reason: str) -> None:
        self.stops.append((by, reason))

    def patch(self, name: str, value: float, by: str) -> None:
        if name == "cur_step_num":
            raise ReadOnlyParam("it is the run's own")
        if name != "learning_rate":
            raise NotTraced("it is not read")
        if value < 0:
            raise ArgumentError("it is negative")
        self.patches.append((name, value, by))


class Site:
    """A served bus with one run."""

    def __init__(self, bus: EventBus, log: EventLog, url: str, token: Token) -> None:
        self.bus, self.log, self.url, self.token = bus, log, url, token
        self.control = Steered()
        log.control = self.control
        self.seq = 0

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def commit(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            self.log.append(entry(self.seq, size=size))
            self.seq += 1

    def attach(self, **arguments: Any) -> Attachment:
        return attach(self.url, **{"token": self.token.value, "since": "begin", **arguments})

    def http(self, token: Token | None = None, **arguments: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {(token or self.token).value}"}
        base = self.url.replace("ws://", "http://")
        return httpx.Client(base_url=base, headers=headers, timeout=10, **arguments)

    def socket(self, token: Token | None = None, **arguments: Any) -> ClientConnection:
        """A bare WebSocket, as any language has one."""
        headers = {"Authorization": f"Bearer {(token or self.token).value}"}
        settings: dict[str, Any] = {"subprotocols": [SUBPROTOCOL], "compression": None}
        settings |= {"proxy": None}
        settings |= {"additional_headers": headers, "max_size": 2**21, "legacy": True}
        made: ClientConnection = connect(f"{self.url}/subscribe", **(settings | arguments))
        return made


@contextmanager
def site(
    tokens: Tokens | None = None, bus: EventBus | None = None, **arguments: Any
) -> Iterator[Site]:
    """A run named `run`, served on a free port."""
    bus, token = EventBus() if bus is None else bus, Token.new()
    tokens = Tokens() if tokens is None else tokens
    tokens.add(token)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(bus.open("run")) as log,
        serving(bus, "127.0.0.1:0", tokens, **arguments) as served,
    ):
        yield Site(bus, log, served.url, token)


def say(socket: ClientConnection, frame: FromClient) -> None:
    socket.send(pack_frame(frame))


def hear(socket: ClientConnection) -> Any:
    data = socket.recv(timeout=10)
    assert isinstance(data, bytes)
    return unpack_from_service(data)


HELLO = Hello(version=(1, 0), since="begin")
