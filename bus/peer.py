"""A participant in another process, as the service has it: what it is still to be sent."""

from collections import deque

import anyio
from anyio.lowlevel import current_token

from railbus.schemas.codes import Code
from railbus.schemas.frames import Hello

from .observer import hooks_named, soon


class Peer:
    """Messages for one participant: put in from any thread, taken out on the service's event loop.

    Args:
        hello: what it wants.

    Attributes:
        seat: by this it takes its slot back.
        hooks: at which it wants to be asked.

    Raises:
        ArgumentError: for an unknown hook.
    """

    def __init__(self, hello: Hello) -> None:
        self.seat = hello.seat
        self.hooks = hooks_named(hello.hooks)
        self.ending: tuple[Code, str] | None = None
        self._waiting: deque[bytes] = deque()
        self._token = current_token()
        self._arrived = anyio.Event()

    def give(self, data: bytes) -> None:
        """Send it `data`."""
        self._waiting.append(data)
        self._wake()

    def end(self, code: Code, reason: str = "") -> None:
        """Let it go once it was sent what is waiting; the first reason counts."""
        self.ending = self.ending or (code, reason)
        self._wake()

    def close(self) -> None:
        """The service goes away."""
        self.end(Code.RESTART)

    async def take(self) -> bytes | None:
        """The next message; None at the end."""
        while not self._waiting:
            if self.ending is not None:
                return None
            self._arrived = anyio.Event()
            if not self._waiting and self.ending is None:
                await self._arrived.wait()
        return self._waiting.popleft()

    def _wake(self) -> None:
        soon(self._token, lambda: self._arrived.set())
