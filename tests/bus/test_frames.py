"""Frames: what is read, what is refused, and what refusing costs."""

import random
import struct
import tracemalloc

import msgpack
import pytest

from railbus.schemas import Event, Hook
from railbus.schemas.errors import FrameError
from railbus.schemas.frames import (
    HELLO_LIMITS,
    INBOUND_LIMITS,
    Answer,
    Asked,
    Bye,
    Chunk,
    Code,
    Credit,
    Events,
    Fetch,
    FromClient,
    FromService,
    Hello,
    Missed,
    Welcome,
    agreed,
    pack,
    pack_events,
    unpack_from_client,
    unpack_from_service,
)
from railbus.schemas.pieces import CHUNK, assembled, chunks

EVENT = Event(
    run_id="run",
    incarnation=2,
    seq=7,
    hook=Hook.TRAIN_STEP_END,
    time_ns=1,
    wall_ns=2,
    snapshot=b"\x81\xa1x\x01",
)
FROM_CLIENT: list[FromClient] = [
    Hello(version=(1, 0)),
    Hello(version=(1, 3), run="a-run", hooks=["on_train_end"], every=3, since=9, incarnation=1),
    Credit(upto=2**40),
    Answer(seq=4, hook="on_train_end", stop="why", patch={"learning_rate": b"\x01", "x": None}),
    Fetch(number=1),
    Bye(code=Code.LEFT),
]
FROM_SERVICE: list[FromService] = [
    Welcome(version=(1, 0), run_id="run", incarnation=0, since=0, head=-1),
    Events(events=(EVENT, EVENT)),
    Missed(first=1, last=3, reason="slow"),
    Asked(event=EVENT, traced=("learning_rate",), stopping=("eval",), seconds=30.0),
    Chunk(number=1, at=0, size=2, digest="00", data=b"ab"),
    Bye(code=Code.ENDED, reason="it is over"),
]


@pytest.mark.parametrize("frame", FROM_CLIENT)
def test_a_clients_frame_comes_back_as_it_was(frame):
    assert unpack_from_client(pack(frame)) == frame


@pytest.mark.parametrize("frame", FROM_SERVICE)
def test_a_frame_of_the_service_comes_back_as_it_was(frame):
    assert unpack_from_service(pack(frame)) == frame


def test_events_packed_one_by_one_are_the_frame_of_them_all():
    events = tuple(
        Event(**{name: getattr(EVENT, name) for name in EVENT.__struct_fields__} | {"seq": seq})
        for seq in range(300)
    )

    assert unpack_from_service(pack_events([pack(one) for one in events])) == Events(events=events)


def test_a_frame_of_the_other_side_is_refused():
    with pytest.raises(FrameError, match="Invalid value 'events'"):
        unpack_from_client(pack(Events(events=())))
    with pytest.raises(FrameError, match="Invalid value 'hello'"):
        unpack_from_service(pack(Hello(version=(1, 0))))


def test_a_hello_may_hold_fields_of_a_newer_minor_and_no_other_frame_may():
    hello = {"t": "hello", "version": [1, 7], "compress": ["zstd"], "since": 3}

    assert unpack_from_client(msgpack.packb(hello)) == Hello(version=(1, 7), since=3)
    with pytest.raises(FrameError, match="unknown field `n`"):
        unpack_from_client(msgpack.packb({"t": "credit", "upto": 3, "n": 1}))


@pytest.mark.parametrize(
    ("theirs", "spoken"), [((1, 0), (1, 0)), ((1, 5), (1, 0)), ((0, 9), None), ((2, 0), None)]
)
def test_a_minor_version_may_differ_and_a_major_one_is_refused_with_both_named(theirs, spoken):
    if spoken is not None:
        assert agreed(theirs) == spoken
        return
    with pytest.raises(FrameError, match=rf"1\.0.*{theirs[0]}\.{theirs[1]}") as refusal:
        agreed(theirs)

    assert refusal.value.code == Code.VERSION


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        None,
        {"t": "hello"},
        {"t": "hello", "version": "1.0"},
        {"t": "hello", "version": [1, 0, 0]},
        {"t": "hello", "version": [1, -1]},
        {"t": "hello", "version": [1, 0], "run": "../etc"},
        {"t": "hello", "version": [1, 0], "run": "run\n"},
        {"t": "hello", "version": [1, 0], "run": "a" * 65},
        {"t": "hello", "version": [1, 0], "every": 0},
        {"t": "hello", "version": [1, 0], "every": True},
        {"t": "hello", "version": [1, 0], "every": 1.0},
        {"t": "hello", "version": [1, 0], "since": -1},
        {"t": "hello", "version": [1, 0], "since": "yesterday"},
        {"t": "hello", "version": [1, 0], "since": 2**63},
        {"t": "hello", "version": [1, 0], "role": "admin"},
        {"t": "hello", "version": [1, 0], "hooks": ["x"] * 33},
        {"t": "ack", "seq": 2**64 - 1, "hook": "on_train_end"},
        {"t": "ack", "seq": 1, "hook": "on_train_end", "stop": "x" * 1001},
        {"t": "fetch", "number": 1, "what": "/etc/passwd"},
        {"t": b"hello", "version": [1, 0]},
        {1: "hello"},
    ],
)
def test_what_is_no_frame_is_refused(wrong):
    with pytest.raises(FrameError):
        unpack_from_client(msgpack.packb(wrong))


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


BOMBS = {
    **{f"depth {depth}": nested(depth) for depth in (17, 512, 1024, 1025, 65_000)},
    **{f"{head:x} of 2**32 - 1": bytes((head,)) + b"\xff" * 4 for head in (0xDD, 0xDF, 0xDB, 0xC6)},
    "ext of 2**32 - 1": b"\xc9" + b"\xff" * 4 + b"\x01",
    "64 Ki empty maps": b"\xdc\xff\xf0" + b"\x80" * 0xFFF0,
    "lists of lists that promise more": b"\xdd\x00\x00\xff\xff" * 13_000,
    "wide and deep": (b"\xdc\x04\x00" + b"\xc0" * 1023) * 60 + b"\xc0",
    "a bad timestamp": b"\x81\xa1t\xd7\xff" + b"\xff" * 8,
    "a huge int": b"\x82\xa1t\xa6credit\xa4upto\xcf" + b"\xff" * 8,
    "cut short": pack(FROM_CLIENT[1])[:-1],
    "two frames": pack(FROM_CLIENT[0]) * 2,
    "nothing": b"",
    "never a token": b"\xc1",
    "half a surrogate pair": b"\x81\xa1t\xa3\xed\xa0\x80",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_8_mib(name):
    data = BOMBS[name][: INBOUND_LIMITS.size]
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            unpack_from_client(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 8 << 20


@pytest.mark.parametrize("limits", [HELLO_LIMITS, INBOUND_LIMITS])
def test_one_byte_over_the_limit_is_too_large(limits):
    with pytest.raises(FrameError) as refusal:
        unpack_from_client(bytes(limits.size + 1), limits)

    assert refusal.value.code == Code.TOO_LARGE


def test_mutated_frames_give_frames_or_frame_errors_and_nothing_else():
    chance = random.Random(6)
    corpus = [pack(frame) for frame in FROM_CLIENT]
    read = refused = 0
    for _ in range(200_000):
        data = bytearray(chance.choice(corpus))
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    data.insert(place, chance.randrange(256))
                case 2 if len(data) > 1:
                    del data[place]
                case _:
                    data[place:place] = struct.pack(">BI", 0xDD, chance.getrandbits(32))
        try:
            unpack_from_client(bytes(data))
            read += 1
        except FrameError:
            refused += 1

    assert read and refused > read


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_pieces_give_the_whole_and_a_damaged_or_missing_one_is_noticed(size):
    data = random.Random(size).randbytes(size)
    pieces = chunks(5, data)

    assert assembled(pieces) == data
    assert all(len(pack(piece)) < 2 << 20 for piece in pieces)
    if size > CHUNK:
        with pytest.raises(FrameError):
            assembled(pieces[1:])
        with pytest.raises(FrameError):
            assembled(pieces[::-1])
