"""The service: an ASGI app over the runs of a bus, to mount anywhere or to serve alone (C8, C11).

| path | what |
| --- | --- |
| `GET /runs` | the runs of the bus, oldest first |
| `GET /runs/{id}` | one of them |
| `GET /runs/{id}/events?since=&hook=&every=&limit=` | committed events of the ring or recording |
| `GET /runs/{id}/stream?since=&hook=&every=` | the same as server-sent events, as they are committed |
| `POST /runs/{id}/stop` | `{"reason": "..."}`: ask it to stop |
| `POST /runs/{id}/params` | `{"name": "learning_rate", "value": 1e-4}`: set a traced value |
| `WebSocket /subscribe` | the protocol of `schemas.frames` |
| `GET /openapi.json` | all of this for programs |
| `GET /healthz` | whether it is there; the one path without a token |

Errors are `{"error": {"code": "...", "message": "..."}}`, with the codes of `schemas.frames.Code`.
"""

import logging
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from anyio import move_on_after, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from railbus.schemas.errors import ArgumentError, NotTraced, ParamError
from railbus.schemas.events import Committed, Event, Gap
from railbus.schemas.frames import Code

from .audience import Audience, check_since
from .bus import EventBus
from .control import Control
from .guard import Guard, Refused
from .log import EventLog
from .observer import Observer
from .openapi import OPENAPI, Change, Stop
from .past import Page
from .plain import entry_json, event_json, run_json
from .query import Query
from .quota import Quota
from .recording import Recording
from .shelf import RecordedLog
from .station import Station
from .tokens import Token, Tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
HEARTBEAT = 15.0  # seconds between two comments in a quiet stream


def app(
    bus: EventBus,
    tokens: Tokens | Iterable[Token],
    *,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    quota: Quota = Quota(),  # noqa: B008  # frozen
) -> Starlette:
    """An ASGI app that lets others watch and steer the runs of `bus`.

    It guards itself, also where it is mounted; a host that shuts down ends its WebSockets with 1012.

    Args:
        tokens: who is let in; a `Tokens` can be changed later.
        hosts: what the `Host` header may say, for example `{"train.example.org"}`; None is this
            machine's loopback names.
        origins: from which pages browsers may come, for example `{"https://board.example.org"}`.
        quota: what a peer may cost.

    Raises:
        ArgumentError: without tokens nobody could come in.
    """
    held = tokens if isinstance(tokens, Tokens) else Tokens(tokens)
    if not len(held):
        raise ArgumentError("a service needs at least one token, for example Token.new()")
    service = Service(bus)
    guard = Middleware(Guard, tokens=held, hosts=hosts, origins=origins, quota=quota)
    made = Starlette(
        routes=service.routes(),
        middleware=[guard],
        exception_handlers={Refused: _refused, HTTPException: _failed, Exception: _broken},
    )
    made.router.redirect_slashes = False
    made.state.audience = service.audience
    return made


class Service:
    """What the paths of the app do; whoever gets here has been let in by the guard."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self.audience = Audience(bus)

    def routes(self) -> list[Route | WebSocketRoute]:
        """Every path there is."""
        return [
            Route("/healthz", self.health),
            Route("/openapi.json", self.openapi),
            Route("/runs", self.runs),
            Route("/runs/{run_id}", self.run),
            Route("/runs/{run_id}/events", self.events),
            Route("/runs/{run_id}/stream", self.stream),
            Route("/runs/{run_id}/stop", self.stop, methods=["POST"]),
            Route("/runs/{run_id}/params", self.params, methods=["POST"]),
            WebSocketRoute("/subscribe", self.subscribe),
        ]

    async def health(self, request: Request) -> Response:
        """That it is there."""
        return _json({"status": "closing" if self.audience.closing else "ok"})

    async def openapi(self, request: Request) -> Response:
        """The description of the paths."""
        return _json(OPENAPI | {"servers": [{"url": request.scope.get("root_path") or "/"}]})

    async def runs(self, request: Request) -> Response:
        """Every run that the token sees."""
        Query(request)
        token: Token = request.state.token
        logs = [log for log in self._bus.runs.values() if token.sees(log.run_id)]
        return _json({"runs": [run_json(log) for log in logs]})

    async def run(self, request: Request) -> Response:
        """One run."""
        Query(request)
        return _json(run_json(self._log(request)))

    async def events(self, request: Request) -> Response:
        """What the ring holds of a run, from `since` on."""
        query, log = Query(request, "since", "hook", "every", "limit"), self._log(request)
        since, every = query.number("since", 0), query.number("every", 1, 1)
        limit = query.number("limit", 100, 1, 1000)
        try:
            check_since(log, since)
            page = Page(log.run_id, since, query.hooks, every, limit)
        except ArgumentError as error:
            raise Refused(400, Code.BAD_REQUEST, str(error)) from error
        return _json(await to_thread.run_sync(_filled, page, log))

    async def stream(self, request: Request) -> Response:
        """A run's events as they are committed, for who has only curl."""
        query, log = Query(request, "since", "hook", "every"), self._log(request)
        head = -1 if log.head is None else log.head.event.seq
        last = request.headers.get("last-event-id", "")
        since = int(last) + 1 if re.fullmatch(r"[0-9]{1,15}", last) else head + 1
        observer = self._watch(log, query.number("since", since), query)
        return StreamingResponse(self._told(log, observer), media_type="text/event-stream")

    async def stop(self, request: Request) -> Response:
        """Ask a run to stop."""
        log, asked = self._log(request), await _body(request, Stop)
        by = request.state.token.name
        self._control(log).request_stop(by=by, reason=asked.reason)
        logger.info("%s asks run %s to stop: %r", by, log.run_id, asked.reason)
        return _json({"run_id": log.run_id, "by": by}, 202)

    async def params(self, request: Request) -> Response:
        """Set a value that the compiled step reads."""
        log, change = self._log(request), await _body(request, Change)
        by = request.state.token.name
        try:
            self._control(log).patch(change.name, change.value, by=by)
        except NotTraced as error:
            raise Refused(422, Code.NOT_TRACED, str(error)) from error
        except ParamError as error:
            logger.warning("%s tried to set %s of run %s", by, change.name, log.run_id)
            raise Refused(422, Code.READ_ONLY, str(error)) from error
        except ArgumentError as error:
            raise Refused(422, Code.BAD_VALUE, str(error)) from error
        logger.info("%s sets %s of run %s to %r", by, change.name, log.run_id, change.value)
        return _json({"run_id": log.run_id, "by": by}, 202)

    async def subscribe(self, socket: WebSocket) -> None:
        """The WebSocket of a remote subscriber."""
        await Station(socket, self.audience, lambda name: self._find(socket, name)).serve()

    def _find(self, connection: HTTPConnection, name: str | None) -> EventLog | None:
        token: Token = connection.state.token
        runs = self._bus.runs
        if name is None:
            return next((log for log in reversed(runs.values()) if token.sees(log.run_id)), None)
        return runs.get(name) if RUN_ID.fullmatch(name) and token.sees(name) else None

    def _log(self, request: Request) -> EventLog:
        log = self._find(request, request.path_params["run_id"])
        if log is None:
            raise Refused(404, Code.UNKNOWN_RUN, "there is no such run")
        return log

    def _watch(self, log: EventLog, since: int, query: Query) -> Observer:
        try:
            return self.audience.enter(log, since, query.hooks, query.number("every", 1, 1))
        except ArgumentError as error:
            raise Refused(400, Code.BAD_REQUEST, str(error)) from error

    def _control(self, log: EventLog) -> Control:
        control = log.control
        if control is None:
            if isinstance(log, RecordedLog):
                message = f"run {log.run_id} is shown from its recording; ask where it trains"
                raise Refused(409, Code.READ_ONLY, message)
            state = "has ended" if log.ended else "has not begun"
            raise Refused(409, Code.NOT_UNDER_WAY, f"run {log.run_id} {state}")
        return control

    async def _told(self, log: EventLog, observer: Observer) -> AsyncIterator[bytes]:
        """Server-sent events; a `bye` ends them."""
        try:
            while True:
                item: Event | Gap | None = None
                with move_on_after(HEARTBEAT):
                    item = await anext(observer)
                if item is None:
                    yield b": still there\n\n"
                elif isinstance(item, Gap):
                    yield _sent("gap", item.last, _gap(item))
                else:
                    yield _sent(item.hook.value, item.seq, event_json(item))
        except StopAsyncIteration:
            code = Code.ENDED if log.ended else Code.RESTART
            yield _sent("bye", None, {"code": code})
        finally:
            self.audience.leave(observer)


def _filled(page: Page, log: EventLog) -> dict[str, Any]:
    """A page of a run's events as JSON has it, out of its recording and its ring."""
    if log.recording is not None and log.about is not None and not log.holds(page.following):
        page.read(Recording(log.recording, log.about.incarnation))
    if not page.closed:
        log.join(page, page.following)
        page.close()
    gaps = [_gap(item) for item in page.items if isinstance(item, Gap)]
    shown = [entry_json(item) for item in page.items if isinstance(item, Committed)]
    gap = gaps[0] if gaps else None
    return {"run_id": log.run_id, "events": shown, "gap": gap, "next": page.following}


def _sent(event: str, number: int | None, data: Any) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


def _gap(gap: Gap) -> dict[str, Any]:
    return {"first": gap.first, "last": gap.last, "reason": gap.reason}


def _failed(request: Request, error: Exception) -> Response:
    """What Starlette's router refuses."""
    assert isinstance(error, HTTPException)
    code = Code.METHOD if error.status_code == 405 else Code.NOT_FOUND
    return _error(error.status_code, code, error.detail, error.headers)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error.status, error.code, error.message)


def _broken(request: Request, error: Exception) -> Response:
    """A fault of ours: the server logs it, the peer learns nothing of it."""
    return _error(500, Code.INTERNAL, "the service has failed; its log says how")


def _error(
    status: int, code: Code, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    return Response(body, status, headers, media_type="application/json")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _body(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = str(error) or "nested too deep"
        raise Refused(400, Code.BAD_REQUEST, f"the body does not fit: {reason}") from error
