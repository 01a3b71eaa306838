"""The guard: every route and method, both scopes, hosts, origins, sizes, rates, and slow peers."""

import logging
import stat
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

from railbus.bus import EventBus
from railbus.bus.guard import Guard
from railbus.bus.quota import Lockout, Quota, Rate, Seats
from railbus.bus.service import Service, app
from railbus.bus.tokens import Token, Tokens, read_token, write_token
from railbus.schemas.errors import ArgumentError

WATCHES = Token.new(scopes={"observe"}, name="watcher")
STEERS = Token.new(scopes={"control"}, name="driver")
EXPIRED = Token.new(expires=1.0)


class Peer:
    """Speaks plain ASGI to an app, as a server would."""

    def __init__(self, made: Any, address: str = "10.0.0.1") -> None:
        self.made, self.address = made, address
        self.sent: list[dict[str, Any]] = []
        self.reads = True

    async def ask(
        self,
        path: str,
        token: Token | None = None,
        method: str = "GET",
        headers: list[tuple[bytes, bytes]] | None = None,
        body: tuple[bytes, ...] = (b"",),
        query: bytes = b"",
    ) -> int:
        """The status; for a WebSocket 403 or 101."""
        if headers is None:
            headers = [(b"host", b"localhost:8765")]
        if token is not None:
            headers = [*headers, (b"authorization", b"Bearer " + token.value.encode())]
        kind = "websocket" if method == "WEBSOCKET" else "http"
        scope = {
            "type": kind,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query,
            "headers": headers,
            "client": (self.address, 1),
            "server": ("localhost", 8765),
            "scheme": "ws" if kind == "websocket" else "http",
            "http_version": "1.1",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "subprotocols": [],
            "extensions": {},
        }
        if kind == "http":
            scope["method"] = method
        parts = [
            {"type": "http.request", "body": part, "more_body": k + 1 < len(body)}
            for k, part in enumerate(body)
        ]
        if kind == "websocket":
            parts = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1001}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop(0)
            await anyio.sleep_forever()
            raise AssertionError

        async def send(message: Any) -> None:
            self.sent.append(message)
            if not self.reads:
                await anyio.sleep_forever()

        self.sent = []
        await self.made(scope, receive, send)
        return self.status

    @property
    def status(self) -> int:
        first: dict[str, Any] = self.sent[0] if self.sent else {"type": "nothing"}
        if first["type"] == "http.response.start":
            return int(first["status"])
        return {"websocket.close": 403, "websocket.accept": 101}.get(first["type"], 0)


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads what comes and says yes."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] == "websocket.receive":
        pass


def guarded(**arguments: Any) -> Guard:
    tokens = Tokens([WATCHES, STEERS, EXPIRED])
    return Guard(answers, **({"tokens": tokens} | arguments))


def routes() -> list[tuple[str, str]]:
    """Every path and method that the service has, and methods that it has not."""
    found = []
    for route in Service(EventBus()).routes():
        path = route.path.replace("{run_id}", "run")
        if isinstance(route, WebSocketRoute):
            found.append((path, "WEBSOCKET"))
            continue
        assert isinstance(route, Route)
        every = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"}
        found += [(path, method) for method in sorted(every)]
    return [*found, ("/", "GET"), ("/", "WEBSOCKET"), ("/none", "WEBSOCKET"), ("/none", "DELETE")]


def service() -> Starlette:
    return app(EventBus(), Tokens([WATCHES, STEERS, EXPIRED]))


async def test_without_a_token_no_route_answers_but_health():
    peer = Peer(service())
    with anyio.fail_after(20):
        for token in (None, EXPIRED, Token.new()):
            for path, method in routes():
                peer.address = f"{path} {method} {token}"
                status = await peer.ask(path, token, method)

                public = path == "/healthz" and method in ("GET", "HEAD")
                refused = 403 if method == "WEBSOCKET" else 401
                assert status == (200 if public else refused), (path, method)


async def test_to_watch_needs_observe_and_all_else_needs_control():
    peer = Peer(service())
    with anyio.fail_after(20):
        for path, method in routes():
            reads = method in ("GET", "HEAD", "WEBSOCKET")
            if path == "/healthz" and reads:
                continue
            wrong, right = (STEERS, WATCHES) if reads else (WATCHES, STEERS)

            assert await peer.ask(path, wrong, method) == 403, (path, method)
            allowed = await peer.ask(path, right, method)
            known = path not in ("/", "/none")
            assert allowed not in (401, 403) or (method == "WEBSOCKET" and not known)


async def test_a_refusal_says_nothing_of_any_run():
    bus = EventBus()
    peer = Peer(app(bus, [WATCHES]))
    with anyio.fail_after(20):
        async with bus.open("secret-run"):
            for path in ("/runs", "/runs/secret-run", "/runs/secret-run/stream", "/subscribe"):
                for method in ("GET", "WEBSOCKET"):
                    await peer.ask(path, Token.new(), method)
                    assert b"secret-run" not in b"".join(
                        message.get("body", b"") for message in peer.sent
                    )


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"localhost", True),
        (b"localhost:8765", True),
        (b"LOCALHOST:1", True),
        (b"127.0.0.1", True),
        (b"127.0.0.1:65535", True),
        (b"[::1]:8765", True),
        (b"", False),
        (b"evil.example", False),
        (b"localhost.evil.example", False),
        (b"localhost:8765.evil.example", False),
        (b"evil.example:localhost", False),
        (b"localhost:", False),
        (b"localhost:123456", False),
        (b"localhost@evil.example", False),
        (b"127.0.0.1.nip.io", False),
        (b"127.1", False),
        (b"0.0.0.0", False),
        (b"localhost\n", False),
        (b" localhost", False),
        ("löcalhost".encode(), False),
    ],
)
async def test_only_loopback_hosts_are_answered_by_default(host, allowed):
    peer = Peer(guarded())
    with anyio.fail_after(5):
        for path, method in (("/runs", "GET"), ("/healthz", "GET"), ("/subscribe", "WEBSOCKET")):
            status = await peer.ask(path, WATCHES, method, [(b"host", host)])
            assert (status != 403) is allowed


async def test_given_hosts_are_compared_whole_and_one_header_only_is_allowed():
    peer = Peer(guarded(hosts={"Train.Example.org:443"}))
    good = (b"host", b"train.example.org:443")
    with anyio.fail_after(5):
        assert await peer.ask("/runs", WATCHES, headers=[good]) == 200
        for headers in (
            [],
            [good, good],
            [(b"host", b"train.example.org")],
            [(b"host", b"train.example.org:4430")],
            [(b"host", b"x.train.example.org:443")],
            [(b"host", b"localhost")],
        ):
            assert await peer.ask("/runs", WATCHES, headers=headers) == 403


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        (b"https://board.example", True),
        (b"null", False),
        (b"", False),
        (b"http://board.example", False),
        (b"https://board.example:444", False),
        (b"https://board.example.evil.example", False),
        (b"https://evil.example/https://board.example", False),
        (b"https://evil-board.example", False),
        (b"https://board.example@evil.example", False),
        (b"https://user@board.example", False),
        (b"https://BOARD.example", False),
        (b"https://board.example/", False),
        (b"https://board.example ", False),
        (b"https://board.example.", False),
        ("https://bоard.example".encode(), False),
        (b"https://[::1]", False),
        (b"file://", False),
    ],
)
async def test_origins_are_compared_whole_on_http_and_websocket(origin, allowed):
    peer = Peer(guarded(origins={"https://board.example", "null"}))
    headers = [(b"host", b"localhost")] + ([] if origin is None else [(b"origin", origin)])
    with anyio.fail_after(5):
        for path, method in (("/runs", "GET"), ("/", "GET"), ("/subscribe", "WEBSOCKET")):
            assert (await peer.ask(path, WATCHES, method, headers) != 403) is allowed


async def test_a_mounted_service_guards_itself_below_its_prefix():
    made = Starlette(routes=[Mount("/bus", service())])
    peer = Peer(made)
    with anyio.fail_after(5):
        assert await peer.ask("/bus/healthz") == 200
        assert await peer.ask("/bus/runs") == 401
        assert await peer.ask("/bus/runs", WATCHES) == 200
        assert await peer.ask("/bus/subscribe", method="WEBSOCKET") == 403
        assert await peer.ask("/bus", method="GET") in (307, 401)
        assert await peer.ask("/bus/", method="GET") == 401


async def test_ten_thousand_guesses_find_nothing_and_lock_the_address_out():
    now = [0.0]
    peer = Peer(guarded(clock=lambda: now[0]))
    seen: list[int] = []
    with anyio.fail_after(20):
        for _ in range(10_000):
            seen.append(await peer.ask("/runs", Token.new()))
        locked = await peer.ask("/runs", WATCHES), await peer.ask("/ws", WATCHES, "WEBSOCKET")
        elsewhere = await Peer(peer.made, "10.0.0.2").ask("/runs", WATCHES)
        now[0] += 61
        later = await peer.ask("/runs", WATCHES)

    assert seen[:10] == [401] * 10 and set(seen[10:]) == {429}
    assert (locked, elsewhere, later) == ((429, 403), 200, 200)


async def test_tokens_count_in_one_bearer_header_only():
    value = WATCHES.value.encode()
    host = (b"host", b"localhost")
    shown = (b"authorization", b"Bearer " + value)
    peer = Peer(guarded())
    with anyio.fail_after(5):
        for headers in (
            [host],
            [host, shown, shown],
            [host, (b"authorization", value)],
            [host, (b"authorization", b"Basic " + value)],
            [host, (b"authorization", b"Bearer " + value + b" ")],
            [host, (b"authorization", b"Bearer " + value[:-1])],
            [host, (b"cookie", b"token=" + value)],
            [host, (b"x-token", value)],
        ):
            assert await peer.ask("/runs", headers=headers) == 401
        assert await peer.ask("/runs", query=b"token=" + value) == 401
        assert await peer.ask("/runs", headers=[host, shown]) == 200


async def test_no_log_line_and_no_repr_holds_a_token(caplog):
    caplog.set_level(logging.DEBUG)
    peer, wrong = Peer(guarded()), Token.new()
    with anyio.fail_after(5):
        for token in (WATCHES, STEERS, wrong):
            await peer.ask("/runs", token, query=b"token=" + token.value.encode())
            assert token.value not in caplog.text + repr(token) + str(vars(peer.made))
            assert all(
                token.value.encode() not in message.get("body", b"") for message in peer.sent
            )


async def test_a_revoked_token_is_refused_and_what_it_had_open_ends():
    tokens = Tokens([WATCHES])
    go_on = anyio.Event()

    async def tells(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"secret"})

    peer = Peer(Guard(tells, tokens=tokens))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(peer.ask, "/runs", WATCHES)
            await anyio.wait_all_tasks_blocked()
            tokens.revoke(WATCHES)
            go_on.set()
        sent = list(peer.sent)

        assert [message["type"] for message in sent] == ["http.response.start"]
        assert await peer.ask("/runs", WATCHES) == 401


async def test_a_body_within_its_size_is_read_and_one_byte_more_is_refused():
    peer = Peer(guarded(quota=Quota(body=100)))
    with anyio.fail_after(5):
        for body, status in (
            ((bytes(100),), 200),
            ((bytes(50), bytes(50)), 200),
            ((bytes(101),), 413),
            ((bytes(60), bytes(60)), 413),
        ):
            assert await peer.ask("/runs", STEERS, "POST", body=body) == status


async def test_a_body_that_never_ends_is_given_up():
    peer = Peer(guarded(quota=Quota(body_seconds=0.05)))

    async def receive() -> Any:
        await anyio.sleep_forever()

    scope = {"type": "http", "method": "POST", "path": "/runs", "client": None}
    bearer = (b"authorization", b"Bearer " + STEERS.value.encode())
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with anyio.fail_after(5):
        await peer.made(scope | {"headers": [(b"host", b"localhost"), bearer]}, receive, send)

    assert sent[0]["status"] == 408


async def test_a_peer_that_does_not_read_is_abandoned():
    peer = Peer(guarded(quota=Quota(send_seconds=0.05)))
    peer.reads = False
    with anyio.fail_after(5):
        await peer.ask("/runs", WATCHES)
        assert [message["type"] for message in peer.sent] == ["http.response.start"]
        await peer.ask("/subscribe", WATCHES, "WEBSOCKET")

    assert peer.status == 101


async def test_requests_beyond_the_rate_are_refused_until_time_passes():
    now = [0.0]
    peer = Peer(guarded(quota=Quota(rate=2, burst=3), clock=lambda: now[0]))
    with anyio.fail_after(5):
        first = [await peer.ask("/runs", WATCHES) for _ in range(4)]
        other = await peer.ask("/runs", STEERS, "POST")
        now[0] += 0.5
        later = [await peer.ask("/runs", WATCHES) for _ in range(2)]

    assert (first, other, later) == ([200, 200, 200, 429], 200, [200, 429])


async def test_connections_are_counted_per_token_and_in_all():
    release = anyio.Event()

    async def holds(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await answers(scope, receive, send)

    other = Token.new(scopes={"observe"})
    tokens = Tokens([WATCHES, other])
    made = Guard(holds, tokens=tokens, quota=Quota(connections=3, each=2))
    peers = [Peer(made) for _ in range(5)]
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for peer, token in zip(peers, [WATCHES] * 3 + [other] * 2, strict=True):
                group.start_soon(peer.ask, "/runs", token)
                await anyio.wait_all_tasks_blocked()  # trio starts tasks in an order of its own
            while_open = [peer.status for peer in peers]
            release.set()
        after = await peers[0].ask("/runs", WATCHES)

    assert while_open == [0, 0, 429, 0, 429]
    assert after == 200


def test_a_token_file_is_the_owners_alone_and_others_are_refused(tmp_path):
    path = tmp_path / "token"
    write_token(path, WATCHES)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == WATCHES.value
    with pytest.raises(FileExistsError):
        write_token(path, STEERS)
    path.chmod(0o640)
    with pytest.raises(ArgumentError, match="chmod 600"):
        read_token(path)
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path / "none")


def test_tokens_that_can_be_guessed_and_unknown_scopes_are_refused():
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("secret", {}),
        ("x" * 42, {}),
        ("x" * 257, {}),
        ("ü" * 43, {}),
        ("x" * 42 + "\n", {}),
        (b"x" * 43, {}),
        ("x" * 43, {"scopes": {"admin"}}),
    ]
    for value, arguments in wrong:
        with pytest.raises(ArgumentError):
            Token(value, **arguments)
    with pytest.raises(TypeError):
        Token("x" * 43, scopes="observe")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ArgumentError, match="at least one token"):
        app(EventBus(), [])


def test_every_new_token_has_256_bits_of_its_own():
    values = {Token.new().value for _ in range(1000)}

    assert len(values) == 1000 and all(len(value) >= 43 for value in values)


def test_a_rate_lets_its_burst_through_and_then_its_rate():
    rate = Rate(10, 5, now=0.0)

    assert [rate.take(0.0) for _ in range(6)] == [True] * 5 + [False]
    assert sum(rate.take(k / 1000) for k in range(1000, 2000)) == 5 + 9


def test_the_table_of_wrong_addresses_is_bounded():
    lockout = Lockout(2, 60, remembered=10)
    for k in range(1000):
        lockout.failed(f"10.0.0.{k}", 0.0)
        lockout.failed(f"10.0.0.{k}", 0.0)

    assert not lockout.locked("10.0.0.1", 1.0) and lockout.locked("10.0.0.999", 1.0)
    assert not lockout.locked("10.0.0.999", 61.0)


def test_a_seat_that_is_left_can_be_taken_again():
    seats = Seats(2, 1)

    assert seats.take("a") and not seats.take("a") and seats.take("b") and not seats.take("c")
    seats.leave("a")
    assert seats.take("c")
