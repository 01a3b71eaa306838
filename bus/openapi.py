"""The OpenAPI document of the service, and the bodies it takes."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from railbus.schemas.frames import Code
from railbus.schemas.hooks import Hook


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks a run to stop; the reason is shown in its result."""

    reason: Annotated[str, Meta(max_length=1000)] = "asked from afar"


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets a value that the compiled step reads, for example `learning_rate`."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    value: float


def _parameter(name: str, kind: dict[str, Any], what: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": kind, "description": what}


def _number(default: int, least: int = 0, most: int = 10**15) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


_RUN = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
}
_HOOKS = {"type": "array", "items": {"type": "string", "enum": [hook.value for hook in Hook]}}
_SINCE = _parameter("since", _number(0), "begin with the event of this seq")
_HOOK = _parameter("hook", _HOOKS, "only these hooks; all by default")
_EVERY = _parameter("every", _number(1, 1), "of the step events only every n-th of its hook")
_LIMIT = _parameter("limit", _number(100, 1, 1000), "at most so many events")
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "enum": [code.value for code in Code]},
                "message": {"type": "string"},
            },
        }
    },
}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_REFUSALS = {
    "400": "it does not fit",
    "401": "no token, or one that is worth nothing",
    "403": "the token lacks the scope, or the Host or Origin is not allowed",
    "404": "there is no such run",
    "408": "the body came too slowly",
    "409": "the run is not under way",
    "413": "the body is too large",
    "422": "the value cannot be set",
    "429": "too many requests, connections or wrong tokens",
}


def _operation(
    summary: str,
    *parameters: dict[str, Any],
    status: str = "200",
    body: str | None = None,
    kind: str = "application/json",
) -> dict[str, Any]:
    answers: dict[str, Any] = {
        code: {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for code, text in _REFUSALS.items()
    }
    content = _OBJECT if kind == "application/json" else {kind: {"schema": {"type": "string"}}}
    answers[status] = {"description": "done", "content": content}
    operation = {"summary": summary, "parameters": list(parameters), "responses": answers}
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _document() -> dict[str, Any]:
    _, bodies = msgspec.json.schema_components(
        [Stop, Change], ref_template="#/components/schemas/{name}"
    )
    run = "/runs/{run_id}"
    stream = _operation("follow its events", _RUN, _SINCE, _HOOK, _EVERY, kind="text/event-stream")
    asks = {"status": "202"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "railbus", "version": "1.0", "description": "Watch and steer runs."},
        "security": [{"token": []}],
        "paths": {
            "/healthz": {"get": _operation("whether it is there") | {"security": []}},
            "/openapi.json": {"get": _operation("this document")},
            "/runs": {"get": _operation("the runs, oldest first")},
            run: {"get": _operation("a run", _RUN)},
            f"{run}/events": {"get": _operation("its events", _RUN, _SINCE, _HOOK, _EVERY, _LIMIT)},
            f"{run}/stream": {"get": stream},
            f"{run}/stop": {"post": _operation("ask it to stop", _RUN, body="Stop", **asks)},
            f"{run}/params": {"post": _operation("set a value", _RUN, body="Change", **asks)},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR, **bodies},
        },
    }


OPENAPI = _document()
