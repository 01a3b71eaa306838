"""Values, events and what their acks said, as JSON."""

import base64
import datetime as dt
import math
from typing import Any

import numpy as np

from railbus.schemas.codec import VALUE_LIMITS, Reference, unpack
from railbus.schemas.events import Ack, Committed, Gap, StopRequest


def jsonable(value: Any, most: int | None = None) -> Any:
    """`value` as what `json.dumps(..., allow_nan=False)` takes.

    value                    | in JSON
    -------------------------+------------------------------------------------------------------
    NaN, infinities          | `"NaN"`, `"Infinity"`, `"-Infinity"`: JSON has no number for them
    array                    | nested lists; of no dimension: a number
    array of > `most` numbers | `{"array": "float32[512, 10]", "min": .., "max": .., "mean": ..}`
    complex number           | `[real, imaginary]`
    live thing (`Reference`) | `{"kind": "network", "type": "Linear", "summary": "18 parameters"}`
    datetime                 | ISO 8601
    bytes                    | `{"base64": ".."}`
    """
    if isinstance(value, dict):
        return {str(name): jsonable(one, most) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(one, most) for one in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, complex):
        return [_number(value.real), _number(value.imag)]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Reference):
        shown = {"kind": value.kind, "type": value.type, "summary": value.summary}
        return {name: text for name, text in shown.items() if text}
    return _array(np.asarray(value), most)


def entry_as_json(entry: Committed | Gap, most: int | None = None) -> dict[str, Any]:
    """One entry of a log; `decision` and `acks` are there where an ack said more than ok.

    `time` is in seconds since the run's begin, `wall_time` in Unix seconds.
    """
    if isinstance(entry, Gap):
        return {"gap": {"first": entry.first, "last": entry.last, "reason": entry.reason}}
    event, decision = entry.event, entry.decision
    shown = {
        "seq": event.seq,
        "hook": event.hook.value,
        "time": event.time_ns / 1e9,
        "wall_time": event.wall_ns / 1e9,
        "epoch": entry.epoch,
        "step": entry.step,
        "cb_params": jsonable(event.cb_params, most),
    }
    if entry.acks or decision.stops or decision.patches or decision.detached:
        shown["decision"] = {
            "stops": [_stop(one) for one in decision.stops],
            "patches": [{"by": by, **_patch(patch, most)} for by, patch in decision.patches],
            "detached": list(decision.detached),
        }
        shown["acks"] = [ack_as_json(ack, most) for ack in entry.acks]
    return shown


def ack_as_json(ack: Ack, most: int | None = None) -> dict[str, Any]:
    """Who answered which event; `stop`, `patch` and `error` are there where they were given."""
    shown: dict[str, Any] = {"seq": ack.seq, "hook": ack.hook.value, "by": ack.by}
    if ack.stop is not None:
        shown["stop"] = {"reason": ack.stop.reason, "scope": ack.stop.scope}
    if ack.patch:
        shown["patch"] = _patch(ack.patch, most)
    if ack.error is not None:
        shown["error"] = ack.error
    return shown


def _stop(stop: StopRequest) -> dict[str, Any]:
    return {"by": stop.by, "reason": stop.reason, "scope": stop.scope}


def _patch(patch: Any, most: int | None) -> dict[str, Any]:
    values = {
        key: jsonable(unpack(packed, VALUE_LIMITS), most)
        for key, packed in patch.items()
        if packed is not None
    }
    removed = [key for key, packed in patch.items() if packed is None]
    return {"set": values} | ({"removed": removed} if removed else {})


def _array(array: np.ndarray[Any, Any], most: int | None) -> Any:
    if most is None or array.size <= most:
        return jsonable(array.tolist())
    shape = ", ".join(map(str, array.shape))
    shown: dict[str, Any] = {"array": f"{array.dtype}[{shape}]"}
    if array.dtype.kind in "biufV":
        numbers = array.astype(np.float64)
        found = {"min": numbers.min(), "max": numbers.max(), "mean": numbers.mean()}
        shown |= {name: _number(float(one)) for name, one in found.items()}
    return shown


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
