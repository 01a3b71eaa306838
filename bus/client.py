"""`attach`: the events of a run in another process, as they are committed (C8)."""

import logging
import random
import threading
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from anyio import NoEventLoopError, to_thread
from anyio.lowlevel import checkpoint, current_token
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from railbus.schemas.errors import ArgumentError, FrameError, RemoteError
from railbus.schemas.events import Event, Gap
from railbus.schemas.frames import (
    VERSION,
    Bye,
    Code,
    Credit,
    Events,
    FromService,
    Hello,
    Missed,
    Welcome,
    pack,
)
from railbus.schemas.hooks import Hook

from .link import FIRST_PAUSE, LONGEST_PAUSE, TEMPORARY, checked, greeted, heard, reached

logger = logging.getLogger(__name__)

Since: TypeAlias = Literal["begin", "live"] | int

CREDIT = 2048  # events that may be on their way


def attach(
    url: str,
    *,
    token: str,
    run: str | None = None,
    hooks: Collection[Hook | str] | None = None,
    every: int = 1,
    since: Since = "live",
    retry_seconds: float = 60.0,
    name: str = "",
) -> "Attachment":
    """The committed events of a run that a service shows; iterate with `for` or `async for`.

    Yields `Event`s, and a `Gap` in the place of those that are lost. When the connection breaks it
    comes back to where it was: each event comes once, or a gap covers it. It ends with the run.

    Args:
        url: where the service is, for example `ws://127.0.0.1:8765`, or with its mount's prefix.
        run: None is the run that began last.
        hooks: which ones, by `Hook` or by name; None means all.
        every: of the step events only every n-th of its hook.
        since: "begin", "live" (from the next event on), or a seq.
        retry_seconds: how long to try to come back before it raises.
        name: what the service's log calls it.

    Raises:
        ArgumentError: an url that is none, or `ws://` beyond loopback, which would show the token.
    """
    return Attachment(
        checked(url),
        token,
        Hello(
            version=VERSION,
            run=run,
            name=name,
            hooks=None if hooks is None else [str(hook) for hook in hooks],
            every=every,
            since=since,
            credit=CREDIT,
        ),
        retry_seconds,
    )


class Attachment:
    """A remote observer: an iterator of `Event | Gap`; leaving its block, or `close`, detaches it.

    Iterating raises `RemoteError` when the service refuses, or stays away too long.

    Attributes:
        run_id: which run it is; None before the first item.
        cursor: the seq that comes next.
        reconnects: how often it had to come back.
    """

    def __init__(self, url: str, token: str, hello: Hello, retry_seconds: float) -> None:
        self.run_id: str | None = None
        self.cursor = -1
        self.reconnects = 0
        self._url, self._token, self._hello = url, token, hello
        self._retry_seconds = retry_seconds
        self._incarnation: int | None = None
        self._socket: ClientConnection | None = None
        self._items: deque[Event | Gap] = deque()
        self._taken = self._upto = 0
        self._ended = False
        self._closed = threading.Event()

    def close(self) -> None:
        """Detach; from any thread. Whoever waits for an item gets the end of the iteration."""
        self._closed.set()
        if (socket := self._socket) is not None:
            socket.close_socket()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event | Gap:
        if not self._items:
            if _in_event_loop():
                raise ArgumentError("`for` would block this event loop; use `async for`")
            self._fill()
        if not self._items:
            raise StopIteration
        return self._items.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Gap:
        if self._items:
            return self._items.popleft()
        await checkpoint()
        try:
            await to_thread.run_sync(self._fill, abandon_on_cancel=True)
        except BaseException:
            self.close()
            raise
        if not self._items:
            raise StopAsyncIteration
        return self._items.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _fill(self) -> None:
        """Wait for items; none come when the run has ended, or this is closed."""
        while not (self._items or self._ended or self._closed.is_set()):
            try:
                socket = self._socket or self._reach()
                if self._closed.is_set():
                    self._lose()
                    return
                self._heed(heard(socket))
            except RemoteError:
                if not self._closed.is_set():
                    self._closed.set()
                    raise
            except (ConnectionClosed, OSError) as error:
                logger.info("the connection to %s is lost: %s", self._url, error)
                self._lose()
            except FrameError as error:
                self.close()
                raise RemoteError(str(error), Code.BAD_FRAME, run_id=self.run_id) from error

    def _heed(self, frame: FromService) -> None:
        if isinstance(frame, Events):
            self._items += frame.events
            self.cursor = frame.events[-1].seq + 1
            self._taken += len(frame.events)
            self._give_credit()
        elif isinstance(frame, Missed):
            self._miss(frame.first, frame.last, frame.reason)
        elif isinstance(frame, Bye):
            self._part(frame)
        else:
            raise FrameError(f"a {type(frame).__name__} is not for observers")

    def _give_credit(self) -> None:
        if self._upto - self._taken < CREDIT // 2 and self._socket is not None:
            self._upto = self._taken + CREDIT
            # Where the service has gone, what it sent before is still to be read.
            with suppress(ConnectionClosed):
                self._socket.send(pack(Credit(upto=self._upto)))

    def _miss(self, first: int, last: int, reason: str) -> None:
        assert self.run_id is not None
        self._items.append(Gap(run_id=self.run_id, first=first, last=last, reason=reason))
        self.cursor = last + 1

    def _part(self, bye: Bye) -> None:
        """The service has said why it ends."""
        self._lose()
        if bye.code == Code.ENDED:
            self._ended = True
        elif bye.code not in TEMPORARY:
            raise RemoteError(bye.reason or f"the service ends it: {bye.code}", bye.code)

    def _lose(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close_socket()

    def _reach(self) -> ClientConnection:
        """A connection that has been welcomed; where there was one, it is tried for a while.

        Raises:
            RemoteError: the service refuses, or stays away.
        """
        pause, waited = FIRST_PAUSE, 0.0
        while True:
            try:
                return self._welcomed()
            except RemoteError as error:
                lasting = self._incarnation is None or waited >= self._retry_seconds
                if lasting or self._closed.is_set():
                    raise
                logger.info("%s: %s; trying again", self._url, error)
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE)

    def _welcomed(self) -> ClientConnection:
        self._socket = socket = reached(self._url, self._token)
        try:
            self._settle(greeted(self._url, socket, self._asking()))
        except RemoteError:
            self._lose()
            raise
        return socket

    def _asking(self) -> Hello:
        """The first hello as it was asked for, later ones with the cursor."""
        if self._incarnation is None:
            return self._hello
        wanted: dict[str, Any] = {
            key: getattr(self._hello, key) for key in self._hello.__struct_fields__
        }
        wanted |= {"run": self.run_id, "since": self.cursor, "incarnation": self._incarnation}
        return Hello(**wanted)

    def _settle(self, welcome: Welcome) -> None:
        again = self._incarnation is not None
        if again:
            self.reconnects += 1
        if again and welcome.incarnation != self._incarnation:
            assert self.run_id is not None
            lost = Gap(run_id=self.run_id, first=self.cursor, last=-1, reason="restart")
            self._items.append(lost)
        self.run_id, self._incarnation = welcome.run_id, welcome.incarnation
        self.cursor = welcome.since
        self._taken, self._upto = 0, CREDIT


def _in_event_loop() -> bool:
    try:
        current_token()
    except NoEventLoopError:
        return False
    return True
