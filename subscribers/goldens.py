"""Goldens: the acks that a test expects, as text beside it; JSON Lines, one ack a line."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from railbus.schemas.codec import VALUE_LIMITS, Reference, unpack
from railbus.schemas.errors import ArgumentError
from railbus.schemas.events import Ack
from railbus.schemas.tensor import Tensor

Mode = Literal["check", "new", "update"]
VERSION = 1
CONTEXT = 3  # acks shown on each side of a difference


class Golden:
    """One golden file.

    Its first line is a JSON object with the format's version, what is ignored and the tolerances;
    each further line is an ack: `{"seq": 12, "hook": "on_train_epoch_end", "by": "EarlyStopping",
    "stop": {"reason": "...", "scope": "train"}}`, with `"ok": true` where it says no more.
    """

    def __init__(self, path: Path, mode: Mode) -> None:
        self.path, self.mode = path, mode

    def check(
        self, acks: Sequence[Ack], ignore: Collection[str], tolerances: Mapping[str, float]
    ) -> None:
        """Compare `acks` with the file, or write it where the mode says so.

        Raises:
            AssertionError: they differ, or there is no file.
        """
        __tracebackhide__ = True
        head = {"railbus": VERSION, "ignore": sorted(ignore), "tolerances": dict(tolerances)}
        got = [head, *map(as_json, acks)]
        if not self.path.exists():
            if self.mode == "check":
                raise AssertionError(
                    f"there is no golden '{self.path}'; write it with --railbus-goldens=new, and "
                    f"read it"
                )
            self._write(got)
            return
        found = difference(self._read(), got, set(ignore), tolerances)
        if found is None:
            return
        if self.mode == "update":
            self._write(got)
            return
        raise AssertionError(
            f"{found}\n(golden '{self.path}'; --railbus-goldens=update takes over what was got)"
        )

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        self.path.write_text(text, encoding="utf-8")

    def _read(self) -> list[dict[str, Any]]:
        try:
            # Not `splitlines`: a reason may hold what that takes for the end of a line.
            text = self.path.read_text("utf-8").removesuffix("\n")
            lines = [json.loads(line) for line in text.split("\n")]
        except ValueError as error:
            raise ArgumentError(f"golden '{self.path}' is not JSON Lines: {error}") from error
        head = lines[0] if lines else None
        if not isinstance(head, dict) or head.get("railbus") != VERSION:
            raise ArgumentError(f"'{self.path}' does not begin as a golden of version {VERSION}")
        return lines


def as_json(ack: Ack) -> dict[str, Any]:
    """An ack as JSON values."""
    found: dict[str, Any] = {"seq": ack.seq, "hook": ack.hook.value, "by": ack.by}
    if ack.stop is not None:
        found["stop"] = {"reason": ack.stop.reason, "scope": ack.stop.scope}
    if ack.patch:
        found["patch"] = {key: _value(packed) for key, packed in ack.patch.items()}
    if ack.error is not None:
        found["error"] = ack.error
    return found if len(found) > 3 else {**found, "ok": True}


def difference(
    wanted: Sequence[Mapping[str, Any]],
    got: Sequence[Mapping[str, Any]],
    ignore: set[str],
    tolerances: Mapping[str, float],
) -> str | None:
    """The first line that differs, field by field, with the lines around it; None if none does."""
    for place in range(max(len(wanted), len(got))):
        left = wanted[place] if place < len(wanted) else None
        right = got[place] if place < len(got) else None
        faults = list(_faults(left, right, ignore, tolerances))
        if faults:
            said = [*faults, *_around("expected", wanted, place), *_around("got", got, place)]
            return "\n".join(said)
    return None


def _faults(
    left: Mapping[str, Any] | None,
    right: Mapping[str, Any] | None,
    ignore: set[str],
    tolerances: Mapping[str, float],
) -> Iterator[str]:
    name = _name(right if left is None else left)
    if left is None or right is None:
        yield f"{name}: expected " + ("no ack, got one" if left is None else "an ack, got none")
        return
    mine, yours = dict(_flat(left)), dict(_flat(right))
    for field in [*mine, *(field for field in yours if field not in mine)]:
        a, b = mine.get(field, "nothing"), yours.get(field, "nothing")
        if field in ignore or field.partition(".")[0] in ignore:
            continue
        key = field.removeprefix("patch.").partition(".")[0]
        if a != b and not _near(a, b, tolerances.get(key)):
            yield f"{name} {field}: expected {a!r}, got {b!r}"


def _near(a: Any, b: Any, tolerance: float | None) -> bool:
    numbers = (isinstance(a, (int, float)), isinstance(b, (int, float)))
    return (
        tolerance is not None and all(numbers) and math.isclose(a, b, rel_tol=0, abs_tol=tolerance)
    )


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _flat(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for place, one in enumerate(value):
            yield from _flat(one, f"{path}[{place}]")
    else:
        yield path, value


def _name(line: Mapping[str, Any] | None) -> str:
    if line is None or "seq" not in line:
        return "the golden's first line"
    return f"#{line['seq']} {line['hook']} {line['by']}"


def _around(title: str, lines: Sequence[Mapping[str, Any]], place: int) -> Iterator[str]:
    yield f"  {title}:"
    for at in range(max(1, place - CONTEXT), min(len(lines), place + CONTEXT + 1)):
        yield f"  {'>' if at == place else ' '} {json.dumps(lines[at], ensure_ascii=False)}"


def _value(packed: bytes | None) -> Any:
    return "(removed)" if packed is None else _plain(unpack(packed, VALUE_LIMITS))


def _plain(value: Any) -> Any:
    """A value of a snapshot as JSON; numbers exactly, what JSON does not have as text."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, Tensor):
        return {"dtype": str(value.dtype), "values": _plain(value.asnumpy().tolist())}
    if isinstance(value, Reference):
        return f"<{value.type} {value.summary}>"
    if hasattr(value, "dtype"):
        return _plain(value.item()) if hasattr(value, "item") else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return repr(value)
