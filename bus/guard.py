"""One pure ASGI guard before every route and WebSocket of the service (C11).

Starlette's own middleware helpers skip WebSockets, so this is plain ASGI. Whatever is not allowed
here is refused before the app, or a WebSocket's upgrade, is reached:

| what | refused with |
| --- | --- |
| `Host` other than those given, or twice | 403 host |
| `Origin` other than those given, `null`, or twice | 403 origin |
| an address with too many wrong tokens | 429 locked_out |
| no bearer token, or one that is not held | 401 unauthorized |
| GET and WebSocket without `observe`, anything else without `control` | 403 forbidden |
| too many requests, or connections | 429 rate, busy |
| a body that is too large or too slow | 413 too_large, 408 bad_request |

A WebSocket is refused with a bare 403 in the place of its upgrade. `/healthz` alone needs no
token; it holds nothing of any run.
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from anyio import move_on_after
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from railbus.schemas.frames import Code

from .quota import Lockout, Quota, Rate, Seats
from .tokens import Token, Tokens

logger = logging.getLogger(__name__)

Clock: TypeAlias = Callable[[], float]

LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
PUBLIC = "/healthz"
READING = frozenset({"GET", "HEAD"})
HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Refused(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, code: Code, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    @property
    def body(self) -> bytes:
        """What the peer is told."""
        return msgspec.json.encode({"error": {"code": self.code, "message": self.message}})


class _Gone(Exception):
    """The peer does not take what it is sent, or may not have it any more."""


class Guard:
    """Lets through what a token allows; wraps any ASGI app.

    Args:
        hosts: what the `Host` header may say, with its port; None is this machine's loopback names.
        origins: what the `Origin` header of a browser may say; absent is always allowed.
        clock: seconds, for rates and lock-outs.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        hosts: Collection[str] | None = None,
        origins: Collection[str] = (),
        quota: Quota = Quota(),  # noqa: B008  # frozen
        clock: Clock = time.monotonic,
    ) -> None:
        self.app = app
        self._tokens, self._quota, self._clock = tokens, quota, clock
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins) - {"null"}
        self._lockout = Lockout(quota.failures, quota.lock_seconds)
        self._seats = Seats(quota.connections, quota.each)
        self._rates: WeakKeyDictionary[Token, Rate] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            token = self._admit(scope)
            if token is None:
                await self.app(scope, receive, send)
            else:
                await self._let_in(token, scope, receive, send)
        except Refused as refusal:
            logger.info("refused %s: %s", _address(scope), refusal.code)
            await _refuse(scope, send, refusal)

    async def _let_in(self, token: Token, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._seats.take(token):
            raise Refused(429, Code.BUSY, "too many connections are open; close one, or wait")
        try:
            rate = self._bucket()
            scope = {**scope, "state": {**scope.get("state", {}), "token": token, "rate": rate}}
            if scope["type"] == "websocket":
                receive = partial(self._message, receive, send, rate)
            elif scope["method"] not in READING:
                receive = _again(await self._body(receive), receive)
            await self.app(scope, receive, partial(self._send, token, scope, send))
        except* _Gone:
            logger.info("%s of %s is abandoned", scope["path"], _address(scope))
        finally:
            self._seats.leave(token)

    def _admit(self, scope: Scope) -> Token | None:
        """Whose token it is; None where none is needed."""
        self._check_host(_values(scope, b"host"))
        self._check_origin(_values(scope, b"origin"))
        method = scope.get("method", "GET")
        if scope["type"] == "http" and method in READING and _route(scope) == PUBLIC:
            return None
        token = self._authenticate(_address(scope), _values(scope, b"authorization"))
        needed = "observe" if method in READING else "control"
        if needed not in token.scopes:
            raise Refused(403, Code.FORBIDDEN, f"this token lacks the scope {needed!r}")
        if not self._rates.setdefault(token, self._bucket()).take(self._clock()):
            raise Refused(429, Code.RATE, "too many requests; wait a second")
        return token

    def _check_host(self, hosts: list[bytes]) -> None:
        name = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        allowed = LOOPBACK.fullmatch(name) if self._hosts is None else name in self._hosts
        if not allowed:
            raise Refused(403, Code.HOST, "the Host header names none of this service's hosts")

    def _check_origin(self, origins: list[bytes]) -> None:
        if not origins:
            return
        if len(origins) > 1 or origins[0].decode("latin-1") not in self._origins:
            raise Refused(403, Code.ORIGIN, "requests from this origin are not allowed")

    def _authenticate(self, address: str, shown: list[bytes]) -> Token:
        now = self._clock()
        if self._lockout.locked(address, now):
            raise Refused(429, Code.LOCKED_OUT, "too many wrong tokens came from this address")
        kind, _, value = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
        if kind.lower() != b"bearer":
            raise Refused(401, Code.UNAUTHORIZED, "send one header Authorization: Bearer TOKEN")
        token = self._tokens.find(value)
        if token is None:
            self._lockout.failed(address, now)
            raise Refused(401, Code.UNAUTHORIZED, "this token is unknown or has expired")
        return token

    def _bucket(self) -> Rate:
        return Rate(self._quota.rate, self._quota.burst, self._clock())

    async def _body(self, receive: Receive) -> bytes:
        """The whole body, within its size and time."""
        body, more = b"", True
        with move_on_after(self._quota.body_seconds):
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > self._quota.body:
                    most = f"a body has at most {self._quota.body} bytes"
                    raise Refused(413, Code.TOO_LARGE, most)
            return body
        raise Refused(408, Code.BAD_REQUEST, "the body did not arrive in time")

    async def _message(self, receive: Receive, send: Send, bucket: Rate) -> Message:
        """The next message of a WebSocket, if it is within its size and rate."""
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        if len(message.get("bytes") or message.get("text") or b"") > self._quota.body:
            await _end(send, Code.TOO_LARGE)
            raise _Gone
        if not bucket.take(self._clock()):
            await _end(send, Code.RATE)
            raise _Gone
        return message

    async def _send(self, token: Token, scope: Scope, send: Send, message: Message) -> None:
        """Give the peer `message`, if its token still allows it and it takes it in time."""
        if not self._tokens.holds(token):
            if scope["type"] == "websocket":
                await _end(send, Code.UNAUTHORIZED)
            raise _Gone
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        with move_on_after(self._quota.send_seconds):
            await send(message)
            return
        raise _Gone


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _route(scope: Scope) -> str:
    """The path below where the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _again(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """A `receive` that gives `body` first."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return waiting.pop() if waiting else await receive()

    return give


async def _end(send: Send, code: Code) -> None:
    """Close a WebSocket; a peer that does not read must not hold the task that does it."""
    with move_on_after(1):
        await send({"type": "websocket.close", "code": code.closes, "reason": code.value})


async def _refuse(scope: Scope, send: Send, refusal: Refused) -> None:
    if scope["type"] == "websocket":
        await _end(send, refusal.code)
        return
    headers: list[Any] = [(b"content-type", b"application/json"), *HEADERS]
    headers.append((b"content-length", str(len(refusal.body)).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    with move_on_after(1):
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.body})
