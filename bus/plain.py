"""Runs and events as JSON values, for those who have no msgpack."""

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from railbus.schemas.codec import Reference
from railbus.schemas.events import Committed, Event
from railbus.schemas.tensor import Tensor

from .log import EventLog

SHOWN = 64  # elements of an array up to which they are listed


def plain(value: Any) -> Any:
    """A value out of a snapshot as JSON has it.

    NaN and the infinities become their names, arrays a dict of dtype, shape and, if they are small,
    values; bytes become their number.
    """
    if isinstance(value, Tensor):
        return _array(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, Reference):
        return {"kind": value.kind, "type": value.type, "summary": value.summary}
    return value


def _array(value: Tensor) -> dict[str, Any]:
    shown: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    if value.size <= SHOWN:
        shown["values"] = plain(value.tolist())
    return shown


def event_json(event: Event) -> dict[str, Any]:
    """An event with its `cb_params`."""
    return {
        "run_id": event.run_id,
        "incarnation": event.incarnation,
        "seq": event.seq,
        "hook": event.hook.value,
        "time_ns": event.time_ns,
        "wall_ns": event.wall_ns,
        "params": plain(event.cb_params),
    }


def entry_json(entry: Committed) -> dict[str, Any]:
    """An event with what was decided on it: its stops, and who changed what."""
    stops = [msgspec.to_builtins(stop) for stop in entry.decision.stops]
    patches = [{"by": by, "keys": sorted(patch)} for by, patch in entry.decision.patches]
    return event_json(entry.event) | {"stops": stops, "patches": patches}


def run_json(log: EventLog) -> dict[str, Any]:
    """A run in a few lines: `head` is the seq of its newest event, -1 before the first."""
    head, about = log.head, log.about
    shown: dict[str, Any] = {
        "run_id": log.run_id,
        "state": _state(log),
        "head": -1 if head is None else head.event.seq,
        "step": 0 if head is None else head.step,
        "epoch": 0 if head is None else head.epoch,
        "incarnation": 0 if about is None else about.incarnation,
    }
    if about is not None:
        shown |= {
            "mode": about.plan.mode,
            "epochs": about.plan.epochs,
            "participants": [role.name for role in about.roles],
            "observers": list(about.observers),
            "device": about.device,
        }
    if head is not None and log.ended:
        params = head.event.cb_params
        shown |= {key: params[key] for key in ("status", "stop_reason", "stop_by") if key in params}
    return shown


def _state(log: EventLog) -> str:
    """A run that has ended without its terminal event was broken off."""
    if not log.ended:
        return "begins" if log.head is None else "runs"
    head, about = log.head, log.about
    whole = about is None or head is None or about.plan.ends_with(head.event.hook)
    return "ended" if whole else "broken off"
