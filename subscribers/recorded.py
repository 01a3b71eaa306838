"""`cb_params` in a replay: recorded values, stubs for what was live, and the callbacks' own keys."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np

from railbus.schemas.codec import VALUE_LIMITS, Reference, entry, unpack
from railbus.schemas.entries import Series
from railbus.schemas.errors import NotRecorded
from railbus.schemas.events import Event
from railbus.schemas.hyperparams import like
from railbus.schemas.params import FACTS, Ledger, Live

Load: TypeAlias = Callable[[Event], Any]
Patch: TypeAlias = Mapping[str, bytes | None]
NETWORK = "train_network"


class Stub:
    """Stands for a live thing of the recorded run, of which a snapshot holds a reference only.

    Whatever is asked of it raises `NotRecorded`.
    """

    def __init__(self, name: str, reference: Reference) -> None:
        self._name, self._reference = name, reference

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python itself asks of any object, and may be absent
            raise AttributeError(name)
        self._refuse(f".{name}")

    def __len__(self) -> int:
        self._refuse(" as a sized thing")

    def __iter__(self) -> NoReturn:
        self._refuse(" as an iterable")

    def __getitem__(self, key: object) -> NoReturn:
        self._refuse(f"[{key!r}]")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse("(...)")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self._refuse(" as an array")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{self._reference.type}, not recorded>"

    def _refuse(self, what: str) -> NoReturn:
        summary = f" ({self._reference.summary})" if self._reference.summary else ""
        raise NotRecorded(
            f"{self._name}{what} was not recorded; a recording holds only that it was a "
            f"{self._reference.type}{summary}{self._hint(what)}"
        )

    def _hint(self, what: str) -> str:
        return ""


class RecordedNetwork(Stub):
    """`cb_params.train_network` in a replay.

    Args:
        params: gives its parameters, or None where they are not known.
    """

    def __init__(self, reference: Reference, params: Callable[[], Any]) -> None:
        super().__init__(NETWORK, reference)
        self._params = params

    @property
    def params(self) -> Any:
        """Nested dict of the parameters.

        Raises:
            NotRecorded: they are not known at this event.
        """
        found = self._params()
        if found is None:
            self._refuse(".params")
        return found

    def _hint(self, what: str) -> str:
        if what != ".params":
            return ""
        return " at this event; pass network=checkpoints(...) to read it from checkpoints"


class RecordedLedger(Ledger):
    """The `cb_params` of a replay.

    What the run itself published comes from the snapshots; what callbacks wrote does not: it is
    written again, by the callbacks that are replayed or, in the name of the others, from the record
    (C2). Values that the computation read (`learning_rate`) are at each event what they were.

    Args:
        load: gives the network's parameters at the end of a training step.

    Attributes:
        began: the first event was shown.
    """

    def __init__(self, load: Load | None = None) -> None:
        super().__init__()
        self._load = load
        self._series = Series()
        self._written: dict[str, bytes | None] = {}  # by callbacks, since the newest snapshot
        self._numbers: dict[str, bytes] = {}  # that the computation reads, with their packed keys
        self._network: Live | None = None
        self._trained: Event | None = None
        self._assigned = False  # a callback has set the network since then
        self.began = False

    def show(self, event: Event, trained: Event | None) -> None:
        """The next event that somebody gets.

        Args:
            trained: the end of the last training step, None before the first.

        Raises:
            SnapshotError: its snapshot is none.
        """
        found = self._series.advance(event.snapshot)
        if self._written:
            self._leave_out_written(found)
        for key, start in self._numbers.items():
            now = self._series.values.get(key)
            if now is not None and self._entries.get(key) != start + now:
                found[key] = now
        if found:
            shown = {key: _live(key, packed) for key, packed in found.items() if packed is not None}
            self.publish(shown, [key for key, packed in found.items() if packed is None])
        if not self.began:
            self._trace(event)
        elif trained is not self._trained:
            self._trained = trained
            if self._load is not None or self._assigned:
                self._show_network(trained)

    def note(self, patch: Patch) -> None:
        """A recorded callback wrote this at the newest event, whoever writes it now."""
        self._written |= {key: now for key, now in patch.items() if key not in self.traced}

    def apply(self, patch: Patch) -> None:
        """A recorded callback that is not replayed wrote this."""
        for key, packed in patch.items():
            if key == NETWORK:
                self._set_network(lambda: None)
            elif packed is not None:
                self.publish({key: _live(key, packed)})
            elif key in self.params:
                self.publish({}, (key,))

    def _leave_out_written(self, found: dict[str, bytes | None]) -> None:
        """What callbacks wrote explains a change, unless the run itself has made another."""
        for key, packed in self._written.items():
            now = self._series.values.get(key)
            found.pop(key, None)
            if now != packed:
                found[key] = now
        self._written = {}

    def _trace(self, event: Event) -> None:
        """What callbacks can set is known with the first event."""
        self.began = True
        for key, value in self.params.items():
            if key not in FACTS and isinstance(value, (np.generic, np.ndarray)):
                self.traced[key] = like(key, value)
                self._numbers[key] = entry(key, b"")
        found = self.params.get(NETWORK)
        if isinstance(found, Stub):
            self._network = Live(found, self._series.values[NETWORK])
            self.traced[NETWORK] = self._assign
            self._show_network(event)

    def _show_network(self, event: Event | None) -> None:
        """That of the run at `event`; what callbacks assigned has gone into it."""
        load = self._load
        self._assigned = False
        self._set_network(lambda: None if load is None or event is None else load(event))

    def _set_network(self, params: Callable[[], Any]) -> None:
        if self._network is not None:
            self.publish({NETWORK: self._network_of(params)})

    def _assign(self, value: Any) -> Live:
        self._assigned = True
        if isinstance(value, RecordedNetwork):
            return self._network_of(value._params)
        params = getattr(value, "params", value)
        return self._network_of(lambda: params)

    def _network_of(self, params: Callable[[], Any]) -> Live:
        assert self._network is not None
        return Live(RecordedNetwork(self._network.value._reference, params), self._network.packed)


def _live(key: str, packed: bytes) -> Live:
    value: Any = unpack(packed, VALUE_LIMITS)
    kind = type(value)
    if kind is Reference:
        value = Stub(key, value)
    elif key == "net_outputs" and isinstance(value, (list, dict)):
        value = _as_published(value)
    return Live(value, packed)


def _as_published(outputs: Any) -> Any:
    """Outputs as the trainer shows them: tuples and dicts, which come out of a snapshot frozen."""
    if isinstance(outputs, list):
        return tuple(map(_as_published, outputs))
    if isinstance(outputs, dict):
        return {name: _as_published(value) for name, value in outputs.items()}
    return Stub("net_outputs", outputs) if isinstance(outputs, Reference) else outputs
