"""The service's side of one WebSocket: an observer or a participant, and its frames."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio import create_task_group, move_on_after
from starlette.websockets import WebSocket, WebSocketDisconnect

from railbus.schemas.errors import ArgumentError, FrameError
from railbus.schemas.events import Event, Gap
from railbus.schemas.frames import (
    HELLO_LIMITS,
    INBOUND_LIMITS,
    SUBPROTOCOL,
    Answer,
    Bye,
    Code,
    Credit,
    Fetch,
    FromClient,
    Hello,
    Missed,
    Welcome,
    agreed,
    pack,
    pack_events,
    unpack_from_client,
)

from .audience import Audience
from .log import EventLog
from .observer import Observer
from .peer import Peer
from .sequencer import Verdict
from .slot import Slot

logger = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
LINGER_SECONDS = 2.0
STRIKES = 3
BATCH_EVENTS = 256
BATCH_BYTES = 256 << 10

Find = Callable[[str | None], EventLog | None]


class Station:
    """One connection: hello, welcome, then events as far as the client has given credit.

    Args:
        find: the run of a name, or the one that began last, among those that the client may see.
    """

    def __init__(self, socket: WebSocket, audience: Audience, find: Find) -> None:
        self._socket, self._audience, self._find = socket, audience, find
        self._sent = self._upto = 0
        self._credited = anyio.Event()

    async def serve(self) -> None:
        """From the upgrade to the bye."""
        offered = self._socket.scope["subprotocols"]
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        try:
            if SUBPROTOCOL not in offered:
                theirs = ", ".join(offered)[:200] or "none"
                message = f"this service speaks {SUBPROTOCOL}, the client offers {theirs}"
                raise FrameError(message, Code.VERSION)
            hello = await self._hello()
            log = self._find(hello.run)
            if log is None:
                raise FrameError("there is no such run", Code.UNKNOWN_RUN)
            await (self._attend if hello.role == "observer" else self._take_part)(hello, log)
        except WebSocketDisconnect:
            pass
        except FrameError as error:
            await self._bye(Code(error.code), str(error))

    async def _hello(self) -> Hello:
        hello: FromClient | None = None
        with move_on_after(HELLO_SECONDS):
            hello = unpack_from_client(await self._receive(), HELLO_LIMITS)
        if hello is None:
            raise FrameError(f"no hello within {HELLO_SECONDS:g} s", Code.SLOW_HELLO)
        if not isinstance(hello, Hello):
            raise FrameError("the first frame must be a hello")
        agreed(hello.version)
        return hello

    async def _attend(self, hello: Hello, log: EventLog) -> None:
        head = -1 if log.head is None else log.head.event.seq
        incarnation = 0 if log.about is None else log.about.incarnation
        since = _since(hello, head, incarnation)
        try:
            observer = self._audience.enter(log, since, hello.hooks, hello.every)
        except ArgumentError as error:
            raise FrameError(str(error), Code.BAD_REQUEST) from error
        self._upto = hello.credit
        try:
            welcome = Welcome(
                version=agreed(hello.version),
                run_id=log.run_id,
                incarnation=incarnation,
                since=since,
                head=head,
            )
            await self._socket.send_bytes(pack(welcome))
            await self._both(self._read, lambda: self._write(observer))
            await self._bye(Code.ENDED if log.ended else Code.RESTART, linger=LINGER_SECONDS)
        finally:
            self._audience.leave(observer)

    async def _take_part(self, hello: Hello, log: EventLog) -> None:
        if "control" not in self._socket.state.token.scopes:
            raise FrameError("this token lacks the scope 'control'", Code.FORBIDDEN)
        try:
            peer = Peer(hello)
        except ArgumentError as error:
            raise FrameError(str(error), Code.BAD_REQUEST) from error
        head = -1 if log.head is None else log.head.event.seq
        slot = _slot(log, hello.slot)
        welcome = Welcome(
            version=agreed(hello.version),
            run_id=log.run_id,
            incarnation=0 if log.about is None else log.about.incarnation,
            since=head + 1,
            head=head,
        )
        peer.give(pack(welcome))
        slot.sit(peer)
        self._audience.add(peer)
        try:
            await self._both(lambda: self._listen(slot, peer), lambda: self._tell(peer))
            assert peer.ending is not None
            code, reason = peer.ending
            await self._bye(code, reason, linger=LINGER_SECONDS)
        finally:
            slot.leave(peer)
            self._audience.leave(peer)

    async def _listen(self, slot: Slot, peer: Peer) -> None:
        """What a participant says; the third thing out of turn is its last."""
        strikes = 0
        while True:
            frame = unpack_from_client(await self._receive(), INBOUND_LIMITS)
            if isinstance(frame, Bye):
                raise WebSocketDisconnect(Code.LEFT.closes)
            if isinstance(frame, Answer):
                verdict = slot.answer(peer, frame)
                if verdict is Verdict.ACCEPTED:
                    self._socket.state.rate.give_back()
                strikes += verdict is Verdict.FOREIGN
            elif isinstance(frame, Fetch):
                strikes += not slot.fetch(peer, frame)
            else:
                raise FrameError("a participant has one hello and no credit")
            if strikes == STRIKES:
                raise FrameError(f"{STRIKES} acks or fetches out of turn", Code.FOREIGN)

    async def _tell(self, peer: Peer) -> None:
        while (message := await peer.take()) is not None:
            await self._socket.send_bytes(message)

    async def _both(
        self, read: Callable[[], Awaitable[None]], write: Callable[[], Awaitable[None]]
    ) -> None:
        """Write and read, until one of them ends.

        Raises:
            FrameError: the client has sent what it may not.
            WebSocketDisconnect: it has gone.
        """
        ended: list[Exception] = []

        async def until_done(part: Callable[[], Awaitable[None]]) -> None:
            try:
                await part()
            except (FrameError, WebSocketDisconnect) as error:
                ended.append(error)
            group.cancel_scope.cancel()

        async with create_task_group() as group:
            group.start_soon(until_done, read)
            await until_done(write)
        if ended:
            raise ended[0]

    async def _read(self) -> None:
        while True:
            frame = unpack_from_client(await self._receive(), INBOUND_LIMITS)
            if isinstance(frame, Bye):
                raise WebSocketDisconnect(Code.LEFT.closes)
            if isinstance(frame, Answer | Fetch):
                raise FrameError("an observer cannot answer or fetch", Code.NOT_A_PARTICIPANT)
            if not isinstance(frame, Credit):
                raise FrameError("a second hello")
            self._upto = max(self._upto, frame.upto)
            self._credited.set()

    async def _write(self, observer: Observer) -> None:
        async for first in observer:
            item: Event | Gap | None = first
            while item is not None:
                if isinstance(item, Gap):
                    gap = Missed(first=item.first, last=item.last, reason=item.reason)
                    await self._socket.send_bytes(pack(gap))
                    item = next(observer) if observer.ready else None
                else:
                    batch, item = self._batch(item, observer)
                    await self._flush(batch)

    def _batch(self, item: Event, observer: Observer) -> tuple[list[bytes], Event | Gap | None]:
        """Packed events that fit into one message, and the item after them if it is there."""
        room = min(BATCH_EVENTS, self._upto - self._sent)
        batch = [self._audience.packed(item)]
        size = len(batch[0])
        while len(batch) < room and size < BATCH_BYTES and observer.ready:
            following = next(observer)
            if isinstance(following, Gap):
                return batch, following
            batch.append(self._audience.packed(following))
            size += len(batch[-1])
        return batch, None

    async def _flush(self, batch: list[bytes]) -> None:
        """Send these events as one message, once there is credit for them."""
        self._sent += len(batch)
        while self._sent > self._upto:
            self._credited = anyio.Event()
            await self._credited.wait()
        await self._socket.send_bytes(pack_events(batch))

    async def _receive(self) -> bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data: bytes | None = message.get("bytes")
        if data is None:
            raise FrameError("frames are binary messages, got a text message")
        return data

    async def _bye(self, code: Code, reason: str = "", linger: float = 0.0) -> None:
        """The last frame and the close; a peer that does not read must not hold them up.

        Args:
            linger: seconds for the client to read everything and go first. What it sends after the
                socket is closed would destroy what it has not read.
        """
        with move_on_after(1):
            await self._socket.send_bytes(pack(Bye(code=code, reason=reason[:1000])))
        with move_on_after(linger), suppress(FrameError):
            while linger and not isinstance(unpack_from_client(await self._receive()), Bye):
                pass
        with move_on_after(1):
            await self._socket.close(code.closes, code.value)


def _slot(log: EventLog, name: str | None) -> Slot:
    """The run's slot of that name.

    Raises:
        FrameError: there is none, or not yet.
    """
    if log.ended:
        raise FrameError(f"run {log.run_id} has ended", Code.ENDED)
    if log.slots is None:
        raise FrameError(f"run {log.run_id} has not begun", Code.NOT_UNDER_WAY)
    if name is None or name not in log.slots:
        names = ", ".join(map(repr, log.slots)) or "none"
        raise FrameError(f"run {log.run_id} has the slots {names}, not {name!r}", Code.NO_SLOT)
    return log.slots[name]


def _since(hello: Hello, head: int, incarnation: int) -> int:
    """Where the client's events begin."""
    if hello.since == "live":
        return head + 1
    if hello.since == "begin" or hello.incarnation not in (None, incarnation):
        return 0
    assert isinstance(hello.since, int)
    return hello.since
