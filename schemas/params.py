"""`cb_params`: what a callback reads and writes, and the ledger that turns writes into patches (C2)."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self, cast

import msgspec

from .codec import entry, join, pack, unpack
from .errors import NotTraced, ParamError, ReadOnlyParam, SnapshotError
from .facts import FACTS as FACTS, HYPERPARAMS, INJECT as INJECT, RESULTS
from .frozen import FrozenDict
from .spelling import near, twin

logger = logging.getLogger(__name__)

Write = Callable[[Any], Any]
Patch = dict[str, bytes | None]


class Live(msgspec.Struct, frozen=True, gc=False):
    """A value that callbacks in this process get as it is, and a snapshot holds in `packed` form."""

    value: Any
    packed: bytes


class _Attributes(dict[str, Any]):
    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            pass
        raise ParamError(f"cb_params has no {name!r} at this point; {self._hint(name)}")

    def _hint(self, name: str) -> str:
        if name in RESULTS:
            return (
                "it is there in on_eval_end, and in fit's on_train_epoch_end after a validation "
                "(see valid_dataset and valid_frequency)"
            )
        if name in HYPERPARAMS:
            return f"the optimizer does not inject it; {INJECT}"
        if name in FACTS:
            return "the run sets it later, or this kind of run has none"
        return near(name, self) or f"it has {sorted(self)}"


def _past(self: object, *args: object, **kwargs: object) -> NoReturn:
    """Refused: this is a snapshot."""
    raise ReadOnlyParam(
        "an observer cannot change cb_params, its events have happened already; make the callback "
        "a participant with observes = False"
    )


class Snapshot(FrozenDict, _Attributes):
    """A decoded snapshot: `cb_params` as it was at one event, with attribute access, read-only."""

    __slots__ = ()
    update = setdefault = pop = popitem = clear = cast(Any, _past)
    __setitem__ = __delitem__ = __ior__ = __setattr__ = __delattr__ = cast(Any, _past)


class CallbackParams(_Attributes):
    """The `cb_params` of a run: a dict with attribute access, named as MindSpore names it.

    Reading an absent name raises `AttributeError` that lists near names. What callbacks add is
    packed at the assignment, must be something msgpack carries, and stays for the rest of the run;
    lists and dicts come back frozen, so that every change is an assignment. Counters, outputs and
    facts of the run are read-only. `learning_rate`, other injected hyperparameters and
    `train_network` are traced: assigning one takes effect with the next step that is computed.

    Raises:
        ReadOnlyParam: at an assignment to a fact of the run, or outside a hook.
        NotTraced: at an assignment to a hyperparameter that the optimizer does not inject.
        SnapshotError: at an assignment of what msgpack cannot carry; names key and type.
    """

    __slots__ = ("_ledger",)
    _ledger: "Ledger | None"

    def __setitem__(self, key: str, value: Any) -> None:
        self._writable().write(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._writable().remove(key)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise ParamError(f"cb_params has no {name!r} to delete")
        del self[name]

    def update(self, *others: Any, **values: Any) -> None:
        """Assign every item, as `dict.update` does."""
        for key, value in dict(*others, **values).items():
            self[key] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # narrower than dict's
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of `key`, assigned first where it is absent."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove `key` and return its value, or `default` where it is absent."""
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> NoReturn:
        """Refused: which item goes would be chance."""
        raise ReadOnlyParam("cb_params cannot drop an item by chance; use `del cb_params.name`")

    def clear(self) -> NoReturn:
        """Refused: the run's own values live here."""
        raise ReadOnlyParam("cb_params cannot be cleared; delete your own keys one by one")

    def _writable(self) -> "Ledger":
        ledger = self._ledger
        if ledger is None or not ledger.writing:
            raise ReadOnlyParam("cb_params can be written only inside a hook, while it runs")
        return ledger


_ABSENT = object()


class Ledger:
    """Keeps `cb_params` for one run: the loop publishes, participants write, both are packed once.

    Args:
        traced: names whose assignment changes the computation, each with a function that checks
            the value and returns what to keep (a plain value or `Live`).
    """

    def __init__(self, traced: Mapping[str, Write] | None = None) -> None:
        self.traced = dict(traced or {})
        self.writing = False
        self._entries: dict[str, bytes] = {}
        self._starts: dict[str, bytes] = {}
        self._snapshot: bytes | None = None
        self._patch: Patch = {}
        self._undo: dict[str, tuple[Any, bytes | None]] = {}
        self._added: set[str] = set()
        self._before: dict[str, tuple[Any, bytes | None]] = {}  # this event's patches
        self.params = self._facade({})

    def publish(self, changes: Mapping[str, Any], drop: Iterable[str] = ()) -> None:
        """What the run itself changes before an event."""
        for key, value in changes.items():
            if type(value) is Live:
                shown, packed = value.value, value.packed
            else:
                shown, packed = value, pack(value, key)
            start = self._starts.get(key)
            if start is None:
                start = self._starts[key] = entry(key, b"")
            packed = start + packed
            if packed != self._entries.get(key):
                self._entries[key], self._snapshot = packed, None
            dict.__setitem__(self.params, key, shown)
        for key in drop:
            self._store(key, _ABSENT, None)

    def snapshot(self) -> bytes:
        """`cb_params` as msgpack bytes; the same bytes until something changes."""
        if self._snapshot is None:
            self._snapshot = join(self._entries.values())
        return self._snapshot

    def kept(self) -> dict[str, bytes]:
        """What callbacks have added, packed: a resumed run begins with it."""
        wanted = (key for key in self._entries if key not in FACTS and key not in self.traced)
        return {key: self._entries[key][len(entry(key, b"")) :] for key in wanted}

    def open(self) -> None:
        """A participant's hook begins: from here on writes belong to it."""
        self.writing = True

    def close(self) -> Patch | None:
        """The hook has returned: what it wrote, or None where it wrote nothing."""
        self.writing = False
        if not self._patch:
            return None
        self._before = {**self._undo, **self._before}
        patch, self._patch, self._undo = self._patch, {}, {}
        return patch

    def commit(self) -> None:
        """The event is committed: what was written at it stays."""
        self._before = {}

    def withdraw(self) -> None:
        """The event is not committed: nothing that was written at it ever happened."""
        self.revert()
        self._undo, self._before = self._before, {}
        self.revert()

    def revert(self) -> None:
        """The hook has failed: what it wrote never happened."""
        self.writing = False
        for key, (value, packed) in self._undo.items():
            self._store(key, value, packed)
        self._patch, self._undo = {}, {}

    def renew(self) -> None:
        """Cut off whoever still holds the present `params`; the run goes on with a copy."""
        self.revert()
        object.__setattr__(self.params, "_ledger", None)
        self.params = self._facade(self.params)

    def close_for_good(self) -> None:
        """The run is over: `params` can only be read, and no longer hold the ledger."""
        self.writing = False
        object.__setattr__(self.params, "_ledger", None)

    def check(self, key: str, value: Any) -> bytes:
        """A number for a traced value from outside the hooks, packed for `adopt`; from any thread.

        Raises:
            NotTraced, ReadOnlyParam: `key` is none that the compiled step reads as a number.
            ArgumentError: `value` does not fit.
        """
        if key not in self.traced or key == "train_network":
            self._check(key)
            names = sorted(self.traced.keys() - {"train_network"})
            raise NotTraced(
                f"from outside only the numbers that the compiled step reads can be set, here "
                f"{names}, got {key!r}"
            )
        return pack(self.traced[key](value), key)

    def adopt(self, patch: Mapping[str, bytes | None]) -> None:
        """What someone outside the callback list has changed; `check` made the values."""
        for key, packed in patch.items():
            if packed is not None:
                self._store(key, unpack(packed), entry(key, packed))

    def write(self, key: str, value: Any) -> None:
        """A participant assigns `key`."""
        if key in self.traced:
            kept = self.traced[key](value)
        else:
            self._check(key)
            if key not in self.params:
                self._warn(key)
            kept = value
        if type(kept) is not Live:
            packed = pack(kept, key)
            kept = Live(unpack(packed), packed)
        before = (self.params.get(key, _ABSENT), self._entries.get(key))
        self._store(key, kept.value, entry(key, kept.packed))
        try:
            self.snapshot()
        except SnapshotError:
            self._store(key, *before)
            raise
        self._undo.setdefault(key, before)
        self._patch[key] = kept.packed

    def remove(self, key: str) -> None:
        """A participant deletes `key`."""
        if key in self.traced:
            raise ReadOnlyParam(f"cb_params.{key} belongs to the computation, it cannot be deleted")
        self._check(key)
        self._undo.setdefault(key, (self.params[key], self._entries[key]))
        self._store(key, _ABSENT, None)
        self._patch[key] = None

    def _check(self, key: str) -> None:
        if not isinstance(key, str):
            raise SnapshotError(f"cb_params keys are str, got {type(key).__name__} {key!r}")
        if key in HYPERPARAMS:
            raise NotTraced(
                f"cb_params.{key} is not read by the compiled step, so an assignment would have no "
                f"effect; {INJECT}"
            )
        if key in FACTS:
            raise ReadOnlyParam(
                f"cb_params.{key} is the run's own and read-only; to end the run call "
                f"run_context.request_stop()"
            )

    def _warn(self, key: str) -> None:
        """A new key of the callbacks' own, once: it may have been meant for a traced value."""
        if key not in self._added and (meant := twin(key, self.traced)):
            logger.warning(
                "cb_params.%s is a key of your own, which the compiled step does not read; to change "
                "the run assign cb_params.%s",
                key,
                meant,
            )
        self._added.add(key)

    def _store(self, key: str, value: Any, packed: bytes | None) -> None:
        if packed != self._entries.get(key):
            self._snapshot = None
        if packed is None:
            self._entries.pop(key, None)
            dict.pop(self.params, key, None)
        else:
            self._entries[key] = packed
            dict.__setitem__(self.params, key, value)

    def _facade(self, values: Mapping[str, Any]) -> CallbackParams:
        params = CallbackParams(values)
        object.__setattr__(params, "_ledger", self)
        return params
