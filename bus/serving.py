"""The service alone: uvicorn in a thread of its own, so that no event loop waits for another."""

import ipaddress
import logging
import os
import shlex
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import uvicorn
from anyio import CancelScope, to_thread
from starlette.applications import Starlette
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from railbus.schemas.errors import ArgumentError

from .bus import EventBus
from .quota import Quota
from .service import app
from .tokens import Token, Tokens, write_token

logger = logging.getLogger(__name__)

STARTS = 10.0  # seconds within which uvicorn must be there
LEAVES = 5.0  # seconds that those who watch have to read what is buffered


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the certificate and its key, in PEM form; TLS 1.2 or newer is spoken."""

    certificate: str
    key: str


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A service that is up.

    Attributes:
        url: for `attach`; the HTTP paths are below it too.
        token_file: where the token is that was made for it; None where tokens were given.
        hint: a command that watches the newest run.
    """

    url: str
    token_file: Path | None
    hint: str


class _Socket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket; when the app is done with a peer that does not read, it is cut off.

    uvicorn would wait for that peer to read what is still to be sent, for ever.
    """

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.writable.is_set():
            self.transport.abort()


@contextmanager
def serving(
    bus: EventBus,
    address: str = "127.0.0.1:0",
    tokens: Tokens | Iterable[Token] | None = None,
    *,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    quota: Quota = Quota(),  # noqa: B008  # frozen
    tls: Tls | None = None,
    behind_proxy: bool = False,
) -> Iterator[Served]:
    """`serve` for those who have no event loop; arguments and errors are the same."""
    listener = _listen(address, tls, behind_proxy)
    try:
        with tempfile.TemporaryDirectory(prefix="railbus-") as folder:
            token_file = None
            if tokens is None:
                token_file = Path(folder, "token")
                tokens = (Token.new(),)
                write_token(token_file, tokens[0])
            if hosts is None and not _is_loopback(listener.getsockname()[0]):
                raise ArgumentError("beyond loopback, name the hosts that clients ask for: hosts=")
            made = app(bus, tokens, hosts=hosts, origins=origins, quota=quota)
            server = uvicorn.Server(_config(made, tls, behind_proxy, quota))
            with _running(server, listener):
                try:
                    yield _served(listener, tls, token_file)
                finally:
                    made.state.audience.close(LEAVES)
    finally:
        listener.close()


@asynccontextmanager
async def serve(
    bus: EventBus,
    address: str = "127.0.0.1:0",
    tokens: Tokens | Iterable[Token] | None = None,
    *,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    quota: Quota = Quota(),  # noqa: B008  # frozen
    tls: Tls | None = None,
    behind_proxy: bool = False,
) -> AsyncIterator[Served]:
    """Serve `bus` while the block is on; whoever still watches then gets 1012.

    Args:
        address: `"host:port"`; port 0 takes a free one.
        tokens: who is let in; None makes one, in a file that only this user can read.
        hosts, origins, quota: as for `service.app`.
        tls: needed beyond loopback, unless
        behind_proxy: a proxy in front of it speaks TLS, and tells clients' addresses.

    Raises:
        ArgumentError: an address that cannot be served, or not without `tls` or `behind_proxy`.
        OSError: the address is taken.
    """
    arguments = {"hosts": hosts, "origins": origins, "quota": quota, "tls": tls}
    block = serving(bus, address, tokens, behind_proxy=behind_proxy, **arguments)  # type: ignore[arg-type]  # as above
    served = await to_thread.run_sync(block.__enter__)
    try:
        yield served
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(block.__exit__, None, None, None)


def _listen(address: str, tls: Tls | None, behind_proxy: bool) -> socket.socket:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ArgumentError(
            f"an address is 'host:port', for example '127.0.0.1:8765', got {address!r}"
        )
    family, kind, protocol, _, found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[
        0
    ]
    if not (tls or behind_proxy or _is_loopback(str(found[0]))):
        raise ArgumentError(
            f"{host!r} can be reached from other machines; give tls=Tls(...), or behind_proxy=True "
            "where a proxy speaks it"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
        listener.bind(found)
    except OSError:
        listener.close()
        raise
    return listener


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _config(made: Starlette, tls: Tls | None, behind_proxy: bool, quota: Quota) -> uvicorn.Config:
    """Without colours, access log, deflate and all that would speak of tokens."""
    return uvicorn.Config(
        made,
        ws=_Socket,
        ws_max_size=quota.body,
        ws_per_message_deflate=False,
        http="h11",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",  # at info it would log urls as they came
        access_log=False,
        server_header=False,
        proxy_headers=behind_proxy,
        limit_concurrency=2 * quota.connections,
        timeout_graceful_shutdown=2,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )


@contextmanager
def _running(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    thread = threading.Thread(
        target=server.run, args=([listener],), name="railbus-service", daemon=True
    )
    thread.start()
    try:
        ends = time.monotonic() + STARTS
        while not server.started:
            thread.join(0.005)
            if not thread.is_alive() or time.monotonic() > ends:
                raise ArgumentError("the service did not start; the log of uvicorn says why")
        yield
    finally:
        server.should_exit = True
        thread.join()


def _served(listener: socket.socket, tls: Tls | None, token_file: Path | None) -> Served:
    host, port = listener.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    secure = "s" if tls else ""
    shown = "$(cat TOKEN_FILE)" if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
    hint = f'curl -H "Authorization: Bearer {shown}" http{secure}://{place}/runs'
    return Served(url=f"ws{secure}://{place}", token_file=token_file, hint=hint)
