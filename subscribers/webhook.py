"""`Webhook`: tells a server when a run begins and how it ended."""

import json
import logging
import math
import time
from collections.abc import Collection, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .callback import Callback
from .checks import count, seconds
from .context import RunContext
from .readings import loss_of, scalars_of

logger = logging.getLogger(__name__)

EVENTS = ("begin", "epoch", "end", "failure")


class _Stays(HTTPRedirectHandler):
    """Goes nowhere else: urllib would drop the message and show the headers to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook(Callback):
    """Posts a JSON object when a run begins, ends or fails, and after epochs if asked.

    An observer without a bounded lag: it never makes the run wait, except that the run's end waits
    up to `drain_seconds` for the last message. At `on_train_begin` ("begin"), `on_train_epoch_end`
    ("epoch"), `on_train_end` ("end") and `on_exception` ("failure"); a lone `eval` posts nothing.
    The object has `event, run_id, time` (Unix seconds), `elapsed` (seconds since the run's begin),
    `epoch, step, loss, results` (of the last validation), and at the end `status, reason, by`;
    numbers that are NaN or Inf are strings. A message that finds no server, or one that answers
    429 or 5xx, is sent again; if that fails too, or on another answer (a redirection is not
    followed), one warning is logged and the run goes on. Keras has `RemoteMonitor`; MindSpore and Lightning have none.

    Args:
        url: an http or https address; only its host appears in logs.
        events: which of "begin", "epoch", "end", "failure".
        headers: sent along, for example `{"Authorization": "Bearer ..."}`.
        retries: how often a message is sent again.
        timeout: of one attempt, in seconds.
        backoff: seconds before the first retry, doubled before each further one.

    Raises:
        ArgumentTypeError, ArgumentError: for an address that is not http or https, unknown events,
            headers that are no text, or wrong numbers.
    """

    observes = True

    def __init__(
        self,
        url: str,
        events: Collection[str] = ("begin", "end", "failure"),
        headers: Mapping[str, str] | None = None,
        retries: int = 3,
        timeout: float = 5.0,
        *,
        backoff: float = 0.5,
    ) -> None:
        self._url, self._host = url, _host(url)
        if isinstance(events, str) or not set(events) <= set(EVENTS):
            raise ArgumentError(f"events must be some of {EVENTS}, got {events!r}")
        self._events = frozenset(events)
        self._headers = {"Content-Type": "application/json", **_headers(headers)}
        self._retries = count("retries", retries, 0)
        self._timeout = seconds("timeout", timeout)
        self._backoff = seconds("backoff", backoff)
        self._results: dict[str, float] = {}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Post "begin"."""
        self._results = {}
        self._post("begin", run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Post "epoch", if asked."""
        self._results = scalars_of(run_context.original_args()) or self._results
        self._post("epoch", run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Post "end"."""
        self._post("end", run_context)

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """Post "failure"; the reason names the error."""
        if "epoch_num" in run_context.original_args():
            self._post("failure", run_context)

    def _post(self, event: str, run_context: RunContext) -> None:
        if event not in self._events:
            return
        cb_params = run_context.original_args()
        message = {
            "event": event,
            "run_id": run_context.event.run_id,
            "time": run_context.wall_time(),
            "elapsed": run_context.now(),
            "epoch": cb_params.get("cur_epoch_num", 0),
            "step": cb_params.get("cur_step_num", 0),
            "loss": _number(loss_of(cb_params)),
            "results": {name: _number(value) for name, value in self._results.items()},
        }
        for name, key in (("status", "status"), ("reason", "stop_reason"), ("by", "stop_by")):
            if key in cb_params:
                message[name] = cb_params[key]
        self._send(event, json.dumps(message, allow_nan=False).encode())

    def _send(self, event: str, body: bytes) -> None:
        problem: Exception | None = None
        opener = build_opener(_Stays)
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._backoff * 2 ** (attempt - 1))
            request = Request(self._url, body, self._headers, method="POST")
            try:
                with opener.open(request, timeout=self._timeout):
                    return
            except HTTPError as error:
                error.close()
                problem = error
                if error.code != 429 and error.code < 500:
                    break
            except (OSError, HTTPException) as error:
                problem = error
        logger.warning("%r was not delivered to %s: %s", event, self._host, problem)


def _host(url: Any) -> str:
    if not isinstance(url, str):
        raise ArgumentTypeError(f"url must be a str, got {type(url).__name__}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ArgumentError(f"url is none: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ArgumentError(
            f"url must begin with http:// or https:// and a host, got the scheme {parts.scheme!r}"
        )
    return host


def _headers(headers: Any) -> dict[str, str]:
    if headers is not None and not isinstance(headers, Mapping):
        raise ArgumentTypeError(f"headers must be a dict or None, got {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ArgumentTypeError(f"headers must be text by name, see {name!r}")
        if not (name + value).isprintable():
            raise ArgumentError(f"headers must not hold line breaks, see {name!r}")
    return dict(headers or {})


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
