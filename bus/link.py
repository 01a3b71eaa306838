"""The client's side of one WebSocket to a service: reached, and greeted."""

from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from railbus.schemas.codes import Code
from railbus.schemas.errors import ArgumentError, FrameError, RemoteError
from railbus.schemas.frames import (
    OUTBOUND,
    SUBPROTOCOL,
    Bye,
    FromService,
    Hello,
    Welcome,
    pack,
    unpack_from_service,
)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts to come back
TEMPORARY = frozenset({Code.RESTART, Code.BUSY, Code.INTERNAL, Code.RATE})


def reached(url: str, token: str) -> ClientConnection:
    """A connection to the service at `url`, a checked one.

    Raises:
        RemoteError: it refuses, or cannot be reached.
    """
    try:
        return connect(
            url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            max_size=OUTBOUND,
            max_queue=4,
            proxy=None,
            legacy=True,
        )
    except InvalidStatus as error:
        code = Code.FORBIDDEN if error.response.status_code in (401, 403) else Code.UNREACHABLE
        raise RemoteError(
            f"{url} refuses with {error.response.status_code}: check the token, its "
            f"scopes, and the host in the url",
            code,
        ) from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise RemoteError(f"{url} cannot be reached: {error}", Code.UNREACHABLE) from error


def greeted(url: str, socket: ClientConnection, hello: Hello) -> Welcome:
    """The answer to `hello`.

    Raises:
        RemoteError: the service refuses it, or does not answer.
        FrameError: it answers with anything else.
    """
    try:
        socket.send(pack(hello))
        answer = heard(socket, timeout=10)
    except (ConnectionClosed, TimeoutError) as error:
        raise RemoteError(f"{url} does not answer: {error}", Code.UNREACHABLE) from error
    if isinstance(answer, Bye):
        raise RemoteError(answer.reason or f"refused: {answer.code}", answer.code)
    if not isinstance(answer, Welcome):
        raise FrameError(f"expected a welcome, got {type(answer).__name__}")
    return answer


def heard(socket: ClientConnection, timeout: float | None = None) -> FromService:
    """The next frame.

    Raises:
        FrameError: the next message is none.
        ConnectionClosed, OSError: the connection is lost.
        TimeoutError: none came within `timeout` seconds.
    """
    message = socket.recv(timeout=timeout)
    if isinstance(message, str):
        raise FrameError("frames are binary messages, got a text message")
    return unpack_from_service(message)


def checked(url: str) -> str:
    """Where the WebSocket is of the service at `url`.

    Raises:
        ArgumentError: an url that is none, or that would show the token to the network.
    """
    parts = urlsplit(url)
    local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname or parts.query or parts.fragment:
        raise ArgumentError(f"a url is 'ws://host:port' with an optional path, got {url!r}")
    if scheme == "ws" and not local:
        raise ArgumentError(f"{url!r} would show the token to the network; use wss://")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/subscribe"
