"""The protocol between a service and a remote subscriber, version 1.0.

One WebSocket, subprotocol `railbus.v1.msgpack`, the token in `Authorization: Bearer`. Each message
is binary and holds one frame: a msgpack map whose key `t` names the frame, its other keys the
fields of the class here. A field that has a default may be left out.

| t | from | when |
| --- | --- | --- |
| hello | client | first, within 5 s, at most 4 KiB |
| welcome | service | the answer to it |
| events | service | committed events, in order, as long as there is credit |
| gap | service | in the place of events that this client will not get (C8) |
| credit | client | raises how many events it takes in all; without one it takes `hello.credit` |
| turn | service, to participants | an event that is not committed yet: the run waits for the ack |
| ack | participant | its answer to its turn |
| fetch | participant | asks for the parameters, `train_network`, at its turn |
| chunk | service | a piece of them |
| bye | either | last; the WebSocket is then closed with the code that `Code` says |

**Order.** A client's cursor is the `seq` after the last event or gap it was sent. A client that
comes back says it in `hello.since`, with the `incarnation` it belongs to. From there on it gets
every event that its `hooks` and `every` let pass exactly once, or a gap that covers it. Where
another incarnation carries the run on, it begins at 0: `welcome.incarnation` tells.

**Credit.** `credit.upto` counts events since the welcome, gaps not included, and never goes back.
Without credit events wait in the service, in a bounded buffer whose oldest make room (gap, "slow").

**Turns.** A participant needs the scope `control`, and a slot that the run's callback list names; it
gets turns, no events, gaps or credit. It has one turn at a time. The first ack to a turn counts; the
same again does nothing, another one and a late one are noted and do nothing; the third to what it
was not asked ends the connection. Who comes back gets a turn that is still open once more, and
sends the ack again if it has one. A slot has one participant; who shows its `seat` again replaces
itself. When the slot goes on without it, it gets a `bye` with `detached`.

**End.** After a `bye` with `ended` or `restart` the service waits 2 s for the client to read the
rest and to say bye, or to close.

**Versions.** The major number stands in the subprotocol and in `hello.version`; another one is
refused with `version`, naming both. The minor is the lower of both: `welcome.version` says it. Of a
hello and of everything from the service unknown fields are ignored, they come from a newer minor;
any other frame of a client holds only the fields of the version agreed on.

**Limits.** 64 KiB per message to the service, nested 16 deep, 4096 items (a list, map or ext value
counts as 4); 200 messages a second on average, 400 at once, acks that count not included. To the client at most 2 MiB a message.
Text messages, unknown frames and fields, and frames out of turn end the connection.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from .codes import Code as Code
from .errors import FrameError
from .events import Event
from .hooks import Mode
from .limits import Limits, scan

VERSION = (1, 0)
SUBPROTOCOL = f"railbus.v{VERSION[0]}.msgpack"
HELLO_LIMITS = Limits(size=4 << 10, items=256)
INBOUND_LIMITS = Limits(size=64 << 10, items=4096)
OUTBOUND = 2 << 20  # bytes of a message to a client

Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=1000)]
NAME = r"\A[a-z0-9][a-z0-9_-]{0,63}\Z"  # of runs and slots
Name = Annotated[str, Meta(pattern=NAME)]
Key = Annotated[str, Meta(max_length=128)]


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="t"):
    """What a client wants.

    Attributes:
        run: None is the run that began last.
        role: a participant names its slot in `slot`.
        name: what it calls itself, in the service's log lines only.
        hooks: None is all of them. A participant acks others without being asked.
        every: of the step events only every n-th of its hook; for observers, as all that follows.
        since: "begin" is 0, "live" the next event, or a cursor.
        incarnation: that the cursor belongs to.
        credit: how many events it takes at first.
        seat: of a participant, a secret of its own by which it takes its slot back.
    """

    version: tuple[Count, Count]
    run: Name | None = None
    role: Literal["observer", "participant"] = "observer"
    slot: Name | None = None
    name: Key = ""
    hooks: Annotated[list[Key], Meta(max_length=32)] | None = None
    every: Annotated[int, Meta(ge=1, le=2**53)] = 1
    since: Literal["begin", "live"] | Count = "live"
    incarnation: Count | None = None
    credit: Count = 1024
    seat: Key = ""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome", tag_field="t"):
    """The client is heard: which run it gets, from `since` on; `head` is the newest seq, or -1."""

    version: tuple[Count, Count]
    run_id: str
    incarnation: int
    since: int
    head: int


class Events(msgspec.Struct, frozen=True, kw_only=True, tag="events", tag_field="t"):
    """Committed events, in order; an event's `snapshot` is `cb_params` packed by itself."""

    events: tuple[Event, ...]


class Missed(msgspec.Struct, frozen=True, kw_only=True, tag="gap", tag_field="t"):
    """Events `first` to `last`, both counted in, will not come; reasons as in `Gap`."""

    first: int
    last: int
    reason: str


class Credit(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="credit",
    tag_field="t",
    forbid_unknown_fields=True,
):
    """The client takes events up to the `upto`-th since the welcome."""

    upto: Count


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="turn", tag_field="t"):
    """A participant's turn at an event.

    Attributes:
        event: its snapshot holds what the participants before have changed at it (C2).
        traced: keys of `cb_params` whose numbers the compiled step reads; an ack may patch them.
        stopping: of which modes a stop was asked so far.
        error: of `on_exception`, what the run has failed with.
        seconds: the slot's deadline, from here on.
    """

    event: Event
    traced: tuple[str, ...] = ()
    stopping: tuple[Mode, ...] = ()
    error: str | None = None
    seconds: float


class Answer(
    msgspec.Struct, frozen=True, kw_only=True, tag="ack", tag_field="t", forbid_unknown_fields=True
):
    """A participant's ack to event `seq`: ok, or with a stop's reason, a patch, or an error.

    Attributes:
        run_id, incarnation: where given, those of the event.
        scope, interrupts: of the stop, as in `StopRequest`.
        patch: new packed values by key; None removes a key.
        error: what its hook has raised, as text; its patch is then dropped.
    """

    seq: Count
    hook: Key
    run_id: Name | None = None
    incarnation: Count | None = None
    stop: Text | None = None
    scope: Mode = "train"
    interrupts: bool = False
    patch: dict[Key, bytes | None] | None = None
    error: Text | None = None


class Fetch(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="fetch",
    tag_field="t",
    forbid_unknown_fields=True,
):
    """Asks for the parameters at the event whose turn is open; `number` names the answer."""

    number: Count
    what: Literal["train_network"] = "train_network"


class Chunk(msgspec.Struct, frozen=True, kw_only=True, tag="chunk", tag_field="t"):
    """A piece of what fetch `number` asked for.

    Attributes:
        at: its place; pieces come in order.
        size: bytes of the whole.
        digest: SHA-256 of the whole, hexadecimal; the same with every piece.
        error: why there is nothing to fetch; this is then the only piece, and empty.
    """

    number: int
    at: int
    size: int
    digest: str
    data: bytes
    error: Text | None = None


class Bye(
    msgspec.Struct, frozen=True, kw_only=True, tag="bye", tag_field="t", forbid_unknown_fields=True
):
    """The last frame: why it ends."""

    code: Key
    reason: Text = ""


FromClient: TypeAlias = Hello | Credit | Answer | Fetch | Bye
FromService: TypeAlias = Welcome | Events | Missed | Asked | Chunk | Bye
Frame: TypeAlias = FromClient | FromService
F = TypeVar("F")

_encoder = msgspec.msgpack.Encoder()
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_service: msgspec.msgpack.Decoder[FromService] = msgspec.msgpack.Decoder(FromService)
_EVENTS = b"\x82\xa1t\xa6events\xa6events"


def pack(frame: Frame | Event) -> bytes:
    """`frame` as the bytes of one message; an event as `pack_events` takes it."""
    return _encoder.encode(frame)


def pack_events(packed: Sequence[bytes]) -> bytes:
    """`pack(Events(...))` of events that are packed already."""
    return b"".join((_EVENTS, b"\xdd", len(packed).to_bytes(4, "big"), *packed))


def unpack_from_client(data: bytes, limits: Limits = INBOUND_LIMITS) -> FromClient:
    """A client's frame, which nobody has vouched for.

    Raises:
        FrameError: for any other bytes, before much is built from them.
    """
    if len(data) > limits.size:
        raise FrameError(f"at most {limits.size} bytes are read, got {len(data)}", Code.TOO_LARGE)
    try:
        scan(data, limits)
    except ValueError as error:
        raise FrameError(f"these {len(data)} bytes are not a frame: {error}") from error
    return _decoded(_from_client, data)


def unpack_from_service(data: bytes) -> FromService:
    """A frame from the service.

    Raises:
        FrameError: for any other bytes.
    """
    if len(data) > OUTBOUND:
        raise FrameError(f"at most {OUTBOUND} bytes are read, got {len(data)}", Code.TOO_LARGE)
    return _decoded(_from_service, data)


def agreed(theirs: tuple[int, int]) -> tuple[int, int]:
    """The version that a service of `VERSION` and a client of `theirs` speak.

    Raises:
        FrameError: the major numbers differ.
    """
    if theirs[0] != VERSION[0]:
        raise FrameError(
            f"this service speaks version {VERSION[0]}.{VERSION[1]}, the client "
            f"{theirs[0]}.{theirs[1]}; use a railbus of the same major version",
            Code.VERSION,
        )
    return min(VERSION, theirs)


def _decoded(decoder: "msgspec.msgpack.Decoder[F]", data: bytes) -> F:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise FrameError(f"these {len(data)} bytes are not a frame: {reason}") from error
