"""The service on a real port: JSON, streams, frames, hostile and slow peers, its end."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import httpx
import msgpack
import psutil
import pytest
import schemathesis
import uvicorn
from hypothesis import given, settings
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from websockets.exceptions import ConnectionClosed, InvalidStatus

from railbus.bus import EventBus
from railbus.bus.client import attach
from railbus.bus.quota import Quota
from railbus.bus.service import app
from railbus.bus.serving import Tls, serve, serving
from railbus.bus.tokens import Token, Tokens
from railbus.schemas import Hook, Plan
from railbus.schemas.errors import ArgumentError
from railbus.schemas.frames import (
    Answer,
    Bye,
    Code,
    Credit,
    Fetch,
    Hello,
    Missed,
    Welcome,
    pack,
)

from ..semantics.synthetic import play
from .served import HELLO, Site, entry, hear, say, site

WATCHES = Token.new(scopes={"observe"}, name="watcher")


def ends_with(ws: Any) -> tuple[str, int]:
    """The code of the bye, and of the close."""
    bye: Any = None
    try:
        while not isinstance(bye, Bye):
            bye = hear(ws)
        with suppress(ConnectionClosed):
            say(ws, Bye(code=Code.LEFT))
        ws.recv(timeout=10)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return bye.code if bye else "", closed.rcvd.code
    raise AssertionError("a message after the bye")


def told(closed: ConnectionClosed) -> int | None:
    """The code of the service's close; None where TCP has lost it, the client being still sending."""
    return None if closed.rcvd is None else closed.rcvd.code


def test_the_runs_are_listed_and_a_run_tells_how_far_it_is():
    with site() as here, here.http() as http:
        before = http.get("/runs/run").json()
        here.commit(5)
        during = http.get("/runs").json()["runs"][0]
        here.log.close()
        after = http.get("/runs/run").json()

    assert (before["state"], before["head"]) == ("begins", -1)
    assert (during["state"], during["head"], during["step"]) == ("runs", 4, 4)
    assert after["state"] == "ended"


def test_events_are_paged_filtered_and_say_what_is_missing():
    with site(bus=EventBus(ring=10)) as here, here.http() as http:
        here.commit(30)
        here.log.append(entry(30, Hook.TRAIN_EPOCH_END))
        first = http.get("/runs/run/events?since=15&limit=4").json()
        second = http.get(f"/runs/run/events?since={first['next']}").json()
        ends = http.get("/runs/run/events", params={"since": 22, "hook": "on_train_epoch_end"})
        thinned = http.get("/runs/run/events?since=22&every=3").json()

    assert first["gap"] == {"first": 15, "last": 20, "reason": "retention"}
    assert [event["seq"] for event in first["events"]] == [21, 22, 23, 24]
    assert [event["seq"] for event in second["events"]] == list(range(25, 31))
    assert second["events"][0]["params"] == {"cur_step_num": 25, "loss": 0.5, "blob": {"bytes": 0}}
    assert [event["seq"] for event in ends.json()["events"]] == [30]
    assert [event["seq"] for event in thinned["events"]] == [23, 26, 29, 30]


def test_a_stop_and_a_value_reach_the_run_in_the_tokens_name():
    driver = Token.new(scopes={"control"}, name="driver")
    with site(Tokens([driver])) as here, here.http(driver) as http:
        stopped = http.post("/runs/run/stop", json={"reason": "enough"})
        changed = http.post("/runs/run/params", json={"name": "learning_rate", "value": 1e-4})

    assert (stopped.status_code, changed.status_code) == (202, 202)
    assert here.control.stops == [("driver", "enough")]
    assert here.control.patches == [("learning_rate", 1e-4, "driver")]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "cur_step_num", "value": 1}, 422, Code.READ_ONLY),
        ({"name": "momentum", "value": 1}, 422, Code.NOT_TRACED),
        ({"name": "learning_rate", "value": -1}, 422, Code.BAD_VALUE),
        ({"name": "learning_rate", "value": "1"}, 400, Code.BAD_REQUEST),
        ({"name": "learning_rate", "value": True}, 400, Code.BAD_REQUEST),
        ({"name": "learning_rate", "value": None}, 400, Code.BAD_REQUEST),
        ({"name": "learning_rate"}, 400, Code.BAD_REQUEST),
        ({"name": "learning_rate", "value": 1, "by": "root"}, 400, Code.BAD_REQUEST),
        ([], 400, Code.BAD_REQUEST),
    ],
)
def test_a_wrong_value_is_refused_with_its_code_and_the_run_stays_as_it_is(body, status, code):
    with site() as here, here.http() as http:
        answer = http.post("/runs/run/params", json=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not here.control.patches


def test_a_run_that_has_ended_cannot_be_steered():
    with site() as here, here.http() as http:
        here.log.close()
        answer = http.post("/runs/run/stop", json={})

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, Code.NOT_UNDER_WAY)


def test_a_watcher_cannot_steer_by_http_or_frames():
    with site(Tokens([WATCHES])) as here, here.http(WATCHES) as http:
        for path, body in (("stop", {}), ("params", {"name": "learning_rate", "value": 1})):
            assert http.post(f"/runs/run/{path}", json=body).status_code == 403
        for frame in (Answer(seq=0, hook="on_train_end", stop="x"), Fetch(number=1)):
            with here.socket(WATCHES) as ws:
                say(ws, HELLO)
                hear(ws)
                say(ws, frame)
                assert ends_with(ws) == (Code.NOT_A_PARTICIPANT, 1008)
        with here.socket(WATCHES) as ws:
            say(ws, Hello(version=(1, 0), role="participant", slot="tuner"))
            assert ends_with(ws) == (Code.FORBIDDEN, 1008)

    assert not (here.control.stops or here.control.patches)


def test_a_token_for_one_run_does_not_see_another():
    narrow = Token.new(runs={"other"})
    with site(Tokens([narrow])) as here, here.http(narrow) as http:
        assert http.get("/runs").json() == {"runs": []}
        for path in ("", "/events", "/stream"):
            assert http.get(f"/runs/run{path}").status_code == 404
        assert http.post("/runs/run/stop", json={}).status_code == 404
        for run in ("run", None):
            with here.socket(narrow) as ws:
                say(ws, Hello(version=(1, 0), run=run))
                assert ends_with(ws) == (Code.UNKNOWN_RUN, 1008)


def hostile_ids() -> list[str]:
    parts = [
        "..",
        "%2e%2e",
        "....//",
        "..%2f",
        "%00",
        "run%00",
        "\\",
        "C:",
        "con",
        "nul",
        "．．",
        "~",
    ]
    shapes = ["{}", "{}/{}", "{}/{}/{}/etc/passwd", "run/{}", "{}%2fetc%2fpasswd", "/{}", "run{}"]
    made = [shape.replace("{}", part) for shape in shapes for part in parts]
    long = [
        "a" * 65,
        "a" * 4096,
        "A",
        "-run",
        "run\u200b",
        "rün",
        "file:%2f%2f%2fetc%2fpasswd",
        "run.",
    ]
    encoded = [
        "%252e%252e",
        "%c0%ae%c0%ae",
        "run%0a",
        "run%0d%0aX: y",
        "run%20",
        "*",
        "run%3f",
        "%",
    ]
    ints = [str(number) for number in (0, -1, 2**64)]
    return [*made, *long, *encoded, *ints]


def test_a_path_that_is_no_runs_name_is_not_found_and_opens_no_file():
    opened: list[str] = []
    watching = threading.Event()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching.is_set() and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(audit)
    paths = [f"/runs/{name}{path}" for name in hostile_ids() for path in ("", "/events")]
    with site() as here:
        watching.set()
        try:
            seen = {path: bare_get(here, path) for path in paths}
        finally:
            watching.clear()

    assert len(seen) > 180
    assert {path: status for path, status in seen.items() if status not in (400, 404)} == {}
    assert opened == []


def bare_get(here: Site, path: str) -> int:
    """The status of a request whose path is sent as it is."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"Authorization: Bearer {here.token.value}", "", ""]
    with socket.create_connection(("127.0.0.1", here.port)) as peer:
        peer.sendall("\r\n".join(lines).encode())
        return int(peer.recv(1 << 16).split()[1])


@pytest.mark.parametrize(
    "query",
    ["since=-1", "since=x", "since=1&since=2", "since=99", "limit=0", "limit=1001", "every=0"]
    + ["hook=on_step", "token=x", "since=%00", "since=٣", "since=" + "9" * 16],
)
def test_a_wrong_query_is_refused(query):
    with site() as here, here.http() as http:
        answer = http.get(f"/runs/run/events?{query}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, Code.BAD_REQUEST)


def test_server_sent_events_follow_a_run_to_its_end():
    with site() as here, here.http() as http:
        here.commit(2)
        with http.stream("GET", "/runs/run/stream?since=0") as stream:
            here.commit(2)
            here.log.close()
            lines = [line for line in stream.iter_lines() if line.startswith(("id", "event"))]
        resumed = http.get("/runs/run/stream", headers={"last-event-id": "2"}).text

    told = [f"id: {seq}" for seq in range(4)]
    assert [line for line in lines if line.startswith("id")] == told
    assert lines[-1] == "event: bye"
    assert "id: 3" in resumed and "id: 2" not in resumed


def test_an_error_of_the_service_is_a_code_without_a_traceback(caplog):
    class Broken(EventBus):
        @property
        def runs(self) -> Any:
            raise ZeroDivisionError("secret detail")

    with serving(Broken(), tokens=[WATCHES]) as served:
        address = served.url.replace("ws", "http") + "/runs"
        answer = httpx.get(address, headers={"authorization": f"Bearer {WATCHES.value}"})

    assert answer.status_code == 500 and answer.json()["error"]["code"] == Code.INTERNAL
    assert "secret" not in answer.text and "secret detail" in caplog.text


def test_frames_hello_welcome_events_gap_and_bye():
    with site(bus=EventBus(ring=10)) as here:
        here.commit(30)
        with here.socket() as ws:
            assert ws.subprotocol == "railbus.v1.msgpack"
            say(ws, HELLO)
            welcome, gap, events = hear(ws), hear(ws), hear(ws)
            here.log.close()
            ended = ends_with(ws)

    assert welcome == Welcome(version=(1, 0), run_id="run", incarnation=0, since=0, head=29)
    assert gap == Missed(first=0, last=19, reason="retention")
    assert [event.seq for event in events.events] == list(range(20, 30))
    assert events.events[3] == entry(23).event
    assert ended == (Code.ENDED, 1000)


def test_the_service_sends_no_more_events_than_it_has_credit_for():
    with site() as here, here.socket() as ws:
        here.commit(10)
        say(ws, Hello(version=(1, 0), since="begin", credit=3))
        hear(ws)
        first = hear(ws)
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.1)
        say(ws, Credit(upto=4))
        second = hear(ws)
        say(ws, Credit(upto=2))
        say(ws, Credit(upto=100))
        rest: list[int] = []
        while len(rest) < 6:
            rest += [event.seq for event in hear(ws).events]

    assert [event.seq for event in first.events] == [0, 1, 2]
    assert [event.seq for event in second.events] == [3]
    assert rest == list(range(4, 10))


@pytest.mark.parametrize(
    ("data", "code", "closes"),
    [
        (b"", Code.BAD_FRAME, 1008),
        (b"\xc1", Code.BAD_FRAME, 1008),
        (pack(Credit(upto=1)), Code.BAD_FRAME, 1008),
        (msgpack.packb({"t": "hello", "version": [2, 0]}), Code.VERSION, 1008),
        (msgpack.packb({"t": "hello", "version": [0, 9]}), Code.VERSION, 1008),
        (msgpack.packb({"t": "hello", "version": [1, 0], "run": "none"}), Code.UNKNOWN_RUN, 1008),
        (msgpack.packb({"t": "hello", "version": [1, 0], "since": 7}), Code.BAD_REQUEST, 1008),
        (msgpack.packb({"t": "hello", "version": [1, 0], "hooks": ["x"]}), Code.BAD_REQUEST, 1008),
        (bytes(4097), Code.TOO_LARGE, 1009),
    ],
)
def test_a_wrong_hello_ends_the_connection_with_its_code(data, code, closes):
    with site() as here, here.socket() as ws:
        ws.send(data)
        assert ends_with(ws) == (code, closes)


def test_another_version_is_refused_with_both_named():
    with site() as here:
        with here.socket() as ws:
            say(ws, Hello(version=(3, 1)))
            spoken = hear(ws).reason
        with here.socket(subprotocols=["railbus.v2.msgpack"]) as ws:
            offered = hear(ws).reason

    assert "1.0" in spoken and "3.1" in spoken
    assert "railbus.v1.msgpack" in offered and "railbus.v2.msgpack" in offered


def test_a_newer_minor_is_spoken_with_in_the_older_one():
    with site() as here, here.socket() as ws:
        ws.send(msgpack.packb({"t": "hello", "version": [1, 5], "new": {"field": [1]}}))

        assert hear(ws).version == (1, 0)


def test_text_a_second_hello_and_garbage_end_the_connection_and_the_run_goes_on():
    wrong: list[Any] = ["text", pack(HELLO), b"\x91" * 60_000, b"\xdd\xff\xff\xff\xff", b"{}"]
    with site() as here:
        for message in wrong:
            with here.socket() as ws:
                say(ws, HELLO)
                hear(ws)
                ws.send(message)
                assert ends_with(ws) == (Code.BAD_FRAME, 1008)
        here.commit(3)
        here.log.close()
        assert len(list(here.attach())) == 3


def test_a_message_over_64_kib_is_closed_with_1009_and_one_of_64_kib_is_read():
    with site() as here:
        for size, code in ((65_537, 1009), (1 << 20, 1009), (65_536, 1008)):
            with here.socket() as ws:
                say(ws, HELLO)
                hear(ws)
                with suppress(ConnectionClosed):
                    ws.send(bytes(size))
                with pytest.raises(ConnectionClosed) as closed:
                    while True:
                        ws.recv(timeout=10)
            assert told(closed.value) in (code, None)


def test_seventy_thousand_fragments_of_a_byte_are_closed_with_1009():
    with site() as here, here.socket() as ws:
        say(ws, HELLO)
        hear(ws)
        with pytest.raises(ConnectionClosed) as closed:
            ws.send(b"x" for _ in range(70_000))
            while True:
                ws.recv(timeout=10)

    assert told(closed.value) in (1009, None)


def test_a_flood_of_frames_is_closed_and_others_are_served():
    with site() as here, here.socket() as ws:
        say(ws, HELLO)
        hear(ws)
        with pytest.raises(ConnectionClosed) as closed:
            for k in range(10_000):
                say(ws, Credit(upto=k))
            while True:
                ws.recv(timeout=10)
        here.commit(3)
        here.log.close()

        assert len(list(here.attach())) == 3
    assert told(closed.value) in (Code.RATE.closes, None)


def test_a_client_that_says_nothing_is_sent_away(monkeypatch):
    monkeypatch.setattr("railbus.bus.station.HELLO_SECONDS", 0.1)
    with site() as here, here.socket() as ws:
        assert ends_with(ws) == (Code.SLOW_HELLO, 1008)


def test_no_upgrade_without_a_token_and_no_data_before_it():
    with site() as here:
        here.commit(1)
        for headers in ({}, {"Authorization": f"Bearer {Token.new().value}"}):
            with pytest.raises(InvalidStatus) as refused:
                here.socket(additional_headers=headers)
            assert refused.value.response.status_code == 403
            assert b"run" not in refused.value.response.body
        with pytest.raises(InvalidStatus):
            here.socket(origin="https://evil.example")


@pytest.mark.parametrize("state", ["upgrade", "hello", "welcome", "events", "blocked"])
@pytest.mark.parametrize("how", ["close", "vanish", "reset"])
def test_a_client_may_go_at_any_point_and_leaves_nothing_behind(state, how):
    made = EventBus()
    with site(bus=made) as here:
        here.commit(10)
        ws = here.socket()
        if state != "upgrade":
            say(ws, Hello(version=(1, 0), since="begin", credit=0 if state == "blocked" else 99))
        if state in ("welcome", "events", "blocked"):
            hear(ws)
        if state == "events":
            hear(ws)
        if how == "reset":
            ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        ws.close() if how == "close" else ws.close_socket()
        here.commit(10)
        here.log.close()

        assert len(list(here.attach())) == 20
    assert not here.log._observers


def test_a_stuck_reader_is_cut_off_and_leaves_no_socket_behind():
    this = psutil.Process()
    with site(quota=Quota(send_seconds=0.2)) as here, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", here.port))
        peer.sendall(upgrade(here.token))
        assert peer.recv(12) == b"HTTP/1.1 101"
        peer.sendall(client_frame(pack(Hello(version=(1, 0), since="live", credit=10**6))))
        until(here, lambda: here.log._observers)
        open_before = this.num_fds()
        here.commit(400, size=60_000)
        until(here, lambda: not here.log._observers)
        until(here, lambda: this.num_fds() < open_before)


def until(here: Site, holds: Callable[[], object]) -> None:
    """Commit events until something is so, for at most 10 s."""
    ends = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < ends
        here.commit(1)
        threading.Event().wait(0.005)


def upgrade(token: Token) -> bytes:
    lines = [
        "GET /subscribe HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: railbus.v1.msgpack",
        f"Authorization: Bearer {token.value}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def client_frame(data: bytes) -> bytes:
    """A masked binary WebSocket message, the mask being zero."""
    return bytes((0x82, 0xFE)) + len(data).to_bytes(2, "big") + bytes(4) + data


def test_who_still_watches_when_the_service_goes_gets_1012():
    with site() as here:
        ws = here.socket()
        say(ws, HELLO)
        hear(ws)
        here.commit(2)
        assert len(hear(ws).events) >= 1

    assert ends_with(ws) == (Code.RESTART, 1012)


def test_the_service_goes_at_once_although_clients_hold_their_connections():
    with site() as here:
        with here.http() as http, http.stream("GET", "/runs/run/stream") as stream:
            quiet = here.socket()
            lines = stream.iter_lines()
            here.commit(1)
            assert next(lines) == "id: 0"
            here.log.close()
            rest = list(lines)

    assert "event: bye" in rest
    with pytest.raises(ConnectionClosed) as closed:
        quiet.recv(timeout=10)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012


async def test_serving_beside_a_host_makes_a_token_file_and_removes_it():
    bus = EventBus()
    with anyio.fail_after(20):
        async with serve(bus) as served:
            assert served.token_file is not None
            token = served.token_file.read_text().strip()
            assert served.token_file.stat().st_mode & 0o077 == 0
            assert token not in served.hint and str(served.token_file) in served.hint
            address = served.url.replace("ws", "http")
            async with httpx.AsyncClient() as http:
                bearer = {"authorization": f"Bearer {token}"}
                answer = await http.get(f"{address}/runs", headers=bearer)
            assert answer.json() == {"runs": []}
        assert not served.token_file.exists()
        with pytest.raises(OSError):
            await anyio.connect_tcp("127.0.0.1", int(address.rpartition(":")[2]))


@pytest.mark.parametrize(
    ("address", "arguments"),
    [
        ("127.0.0.1", {}),
        (":80", {}),
        ("127.0.0.1:99999", {}),
        ("127.0.0.1:x", {}),
        ("0.0.0.0:0", {}),
        ("[::]:0", {}),
        ("0.0.0.0:0", {"behind_proxy": True}),
        ("0.0.0.0:0", {"tls": Tls(certificate="a", key="b")}),
    ],
)
def test_an_address_others_can_reach_is_refused_without_tls_or_a_proxy_and_hosts(
    address, arguments
):
    with pytest.raises(ArgumentError):
        with serving(EventBus(), address, **arguments):
            pass


def test_a_taken_address_is_an_error_of_the_call():
    with site() as here:
        with pytest.raises(OSError):
            with serving(EventBus(), f"127.0.0.1:{here.port}"):
                pass


@pytest.mark.parametrize("prefix", ["/bus", "/a/b"])
def test_mounted_under_a_prefix_it_serves_http_and_websocket_and_the_host_keeps_its_own(prefix):
    bus, token = EventBus(), Token.new()

    async def own(request: Any) -> PlainTextResponse:
        return PlainTextResponse("host")

    host = Starlette(routes=[Mount(prefix, app(bus, [token])), Route("/own", own)])
    bearer = {"authorization": f"Bearer {token.value}"}
    with hosted(host) as port:
        play([], Plan(mode="train", epochs=1, batch_num=3), bus)
        root = f"http://127.0.0.1:{port}"
        seen = list(attach(f"ws://127.0.0.1:{port}{prefix}", token=token.value, since="begin"))
        health = httpx.get(f"{root}{prefix}/healthz")
        runs = httpx.get(f"{root}{prefix}/runs", headers=bearer)
        bare, mine = httpx.get(f"{root}{prefix}/runs"), httpx.get(f"{root}/own")

    assert len(seen) == runs.json()["runs"][0]["head"] + 1
    assert (health.status_code, bare.status_code, mine.text) == (200, 401, "host")


@contextmanager
def hosted(host: Starlette) -> Iterator[int]:
    """Someone else's app on a real server with its own settings."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(host, log_config=None, ws="websockets-sansio", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_the_service_is_what_its_openapi_document_says():
    bus, token = EventBus(), Token.new()
    play([], Plan(mode="train", epochs=1, batch_num=3), bus)
    quota = Quota(rate=1e9, burst=10**9)
    made = app(bus, [token], hosts={"testserver"}, quota=quota)
    bearer = {"Authorization": f"Bearer {token.value}"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", made, headers=bearer)
    tried = []
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]  # raises where it is an error

        @settings(max_examples=15, deadline=None, database=None)
        @given(operation.as_strategy())
        def answers_as_described(case: Any) -> None:
            case.call_and_validate(headers=bearer)

        answers_as_described()
        tried.append(operation.label)

    assert len(tried) == 7  # all but the document itself
