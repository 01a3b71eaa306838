"""A participant's side of its connection: turns come, each is answered exactly once (C6)."""

import logging
import random
import secrets
import threading
import time
from contextlib import ExitStack, suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from railbus.bus.link import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    TEMPORARY,
    checked,
    greeted,
    heard,
    reached,
)
from railbus.schemas.codes import Code
from railbus.schemas.errors import FrameError, RemoteError, StateGone
from railbus.schemas.events import Event
from railbus.schemas.frames import (
    VERSION,
    Asked,
    Bye,
    Chunk,
    Fetch,
    FromService,
    Hello,
    pack,
)
from railbus.schemas.pieces import assembled

from .callback import Callback, hooks_of
from .host import Host
from .roster import replacement

logger = logging.getLogger(__name__)

ABSENT = TEMPORARY | {Code.UNREACHABLE, Code.UNKNOWN_RUN, Code.NOT_UNDER_WAY}


class Guest:
    """Runs a callback in a slot of a run elsewhere; `run_callback` says how.

    An event that comes again after a reconnect gets the answer that was given before.
    """

    def __init__(
        self,
        url: str,
        callback: Callback,
        token: str,
        slot: str,
        run: str | None,
        retry_seconds: float,
    ) -> None:
        self._url, self._token, self._callback = checked(url), token, callback
        self._slot, self._run, self._retry_seconds = slot, run, retry_seconds
        self._seat, self._hooks = secrets.token_hex(16), list[str]()
        self._socket: ClientConnection | None = None
        self._waiting: FromService | None = None  # came in the middle of a fetch
        self._answered: tuple[tuple[int, int, str], bytes] | None = None
        self._open: tuple[int, int, str] | None = None
        self._fetches = 0
        self._ended = False
        self._closed = threading.Event()

    def serve(self) -> None:
        """From entering the callback to the run's end."""
        with ExitStack() as stack, suppress(_Closed):
            seated = replacement(self._callback, stack.enter_context(self._callback))
            host = stack.enter_context(Host(seated, self._slot, self._fetch))
            self._hooks = [hook.value for hook in hooks_of(seated)]
            stack.callback(self._part)
            while not self._ended:
                self._heed(self._receive(), host)

    def close(self) -> None:
        """Leave; from any thread."""
        self._closed.set()
        if (socket := self._socket) is not None:
            socket.close_socket()

    def _heed(self, frame: FromService, host: Host) -> None:
        if isinstance(frame, Asked):
            self._answer(frame, host)
        elif isinstance(frame, Bye):
            self._part()
            if frame.code not in TEMPORARY | {Code.ENDED}:
                reason = frame.reason or f"the service ends it: {frame.code}"
                raise host.error or RemoteError(reason, frame.code, run_id=self._run)
            self._ended = frame.code == Code.ENDED
        elif not isinstance(frame, Chunk):  # the rest of a fetch that was cut off
            raise FrameError(f"a {type(frame).__name__} is not for participants")

    def _answer(self, asked: Asked, host: Host) -> None:
        place = _place(asked.event)
        if self._answered is None or self._answered[0] != place:
            self._open = place
            try:
                self._answered = place, host.handle(asked)
            finally:
                self._open = None
        if self._send(self._answered[1]) and host.error is not None:
            raise host.error

    def _fetch(self, event: Event) -> bytes:
        """The parameters at `event`, while its hook runs; asked again where the connection breaks."""
        if self._open != _place(event):
            raise StateGone("the event is over; touch train_network.params in the hook itself")
        self._fetches += 1
        asking, pieces = pack(Fetch(number=self._fetches)), list[Chunk]()
        self._send(asking)
        while True:
            frame = self._receive()
            if isinstance(frame, Asked) and _place(frame.event) == self._open:
                pieces.clear()
                self._send(asking)
            elif not isinstance(frame, Chunk):
                self._waiting = frame
                raise StateGone("the run has gone on without this participant")
            elif frame.number == self._fetches:
                if frame.error is not None:
                    raise StateGone(f"the network cannot be had: {frame.error}")
                pieces.append(frame)
                if frame.at + len(frame.data) >= frame.size:
                    return assembled(pieces)

    def _receive(self) -> FromService:
        """The next frame, from wherever the service is now."""
        if self._waiting is not None:
            frame, self._waiting = self._waiting, None
            return frame
        while not self._closed.is_set():
            try:
                return heard(self._socket or self._reach())
            except RemoteError as error:
                if error.code == Code.ENDED:
                    return Bye(code=Code.ENDED)
                if not self._closed.is_set():
                    raise
            except (ConnectionClosed, OSError) as error:
                logger.info("the connection to %s is lost: %s", self._url, error)
                self._lose()
        raise _Closed

    def _send(self, message: bytes) -> bool:
        """Whether it is on its way; where it is not, it is asked for once more."""
        try:
            if self._socket is not None:
                self._socket.send(message)
                return True
        except (ConnectionClosed, OSError):
            self._lose()
        return False

    def _reach(self) -> ClientConnection:
        """A connection that has been welcomed, tried for a while.

        Raises:
            RemoteError: the service refuses, or stays away.
        """
        pause, until = FIRST_PAUSE, time.monotonic() + self._retry_seconds
        while True:
            try:
                return self._welcomed()
            except RemoteError as error:
                if error.code not in ABSENT or time.monotonic() > until or self._closed.is_set():
                    raise
                logger.info("%s: %s; trying again", self._url, error)
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _welcomed(self) -> ClientConnection:
        self._socket = socket = reached(self._url, self._token)
        try:
            self._run = greeted(self._url, socket, self._hello()).run_id
        except RemoteError:
            self._lose()
            raise
        return socket

    def _hello(self) -> Hello:
        return Hello(
            version=VERSION,
            run=self._run,
            role="participant",
            slot=self._slot,
            hooks=self._hooks,
            seat=self._seat,
        )

    def _lose(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close_socket()

    def _part(self) -> None:
        """Say goodbye, so that what was sent arrives."""
        self._send(pack(Bye(code=Code.LEFT)))
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()


class _Closed(Exception):
    """`close` was called."""


def _place(event: Event) -> tuple[int, int, str]:
    return event.incarnation, event.seq, event.hook.value
