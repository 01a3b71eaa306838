"""docs/protocol.md is enough: clients that follow it with nothing but `websockets` and `msgpack`."""

import hashlib
import re
from pathlib import Path
from typing import Any

import msgpack
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from railbus.schemas import frames
from railbus.schemas.codes import Code
from railbus.subscribers import Remote

from ..subscribers.visited import TOKEN, WATCHES, Place, place

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text()


class Client:
    """What the section "Connect" says."""

    def __init__(self, url: str, token: str, **hello: Any) -> None:
        self._socket = connect(
            f"{url}/subscribe",
            subprotocols=[Subprotocol("railbus.v1.msgpack")],
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            proxy=None,
            legacy=True,
        )
        self.say(t="hello", version=[1, 0], **hello)

    def say(self, **frame: Any) -> None:
        self._socket.send(msgpack.packb(frame))

    def hear(self) -> dict[str, Any]:
        frame: dict[str, Any] = msgpack.unpackb(self._socket.recv(timeout=10))
        if frame["t"] == "bye":
            self.say(t="bye", code="left")
            self._socket.close()
        return frame


def watch(there: Place) -> list[int]:
    """What the section "Watch" says."""
    client = Client(there.url, WATCHES.value, since="begin", credit=2)
    seen: list[int] = []
    assert client.hear()["run_id"] == "run"
    while (frame := client.hear())["t"] != "bye":
        seen += [event["seq"] for event in frame["events"]]
        client.say(t="credit", upto=len(seen) + 2)
    assert frame["code"] == "ended"
    return seen


def take_part(there: Place) -> list[Any]:
    """What the section "Take part" says: sets a key, asks for the network, stops at step 2."""
    hooks = ["on_train_step_end"]
    client = Client(
        there.url, TOKEN.value, role="participant", slot="tuner", seat="mine", hooks=hooks
    )
    steps: list[Any] = []
    assert client.hear()["t"] == "welcome"
    while (frame := client.hear())["t"] != "bye":
        event = frame["event"]
        steps.append(msgpack.unpackb(event["snapshot"])["cur_step_num"])
        client.say(t="fetch", number=1)
        chunk = client.hear()
        steps.append(chunk["error"] or hashlib.sha256(chunk["data"]).hexdigest() == chunk["digest"])
        ack = {key: event[key] for key in ("seq", "hook", "run_id", "incarnation")}
        ack |= {"patch": {"k": msgpack.packb(steps[-2])}}
        client.say(t="ack", **ack, **({"stop": "two"} if steps[-2] == 2 else {}))
    assert frame["code"] == "ended"
    return steps


def test_an_observer_and_a_participant_that_follow_the_page():
    with place() as there:
        there.begin([Remote("tuner", deadline=20)])
        there.until_begun()
        steps = take_part(there)
        played = there.end()
        seen = watch(there)

    assert steps[::2] == [1, 2] and "train_network" in steps[1]
    assert seen == [entry.event.seq for entry in played.log]
    assert played.params["k"] == 2
    stops = [stop for entry in played.log for stop in entry.decision.stops]
    assert [(stop.by, stop.reason) for stop in stops] == [("tuner", "two")]


def test_the_page_names_every_frame_every_field_and_what_closes():
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", PAGE, re.MULTILINE))
    kinds = (*frames.FromClient.__args__, *frames.FromService.__args__)

    assert rows.keys() == {kind.__struct_config__.tag for kind in kinds}
    for kind in kinds:
        fields = kind.__struct_fields__
        assert [one for one in fields if f"`{one}`" not in rows[kind.__struct_config__.tag]] == []
    closes = {
        number: codes for number, codes in re.findall(r"^\| ([0-9, ]+) \| (`.*) \|$", PAGE, re.M)
    }
    for numbers, codes in closes.items():
        for name in re.findall(r"`(\w+)`", codes):
            assert str(Code(name).closes) in numbers


def test_the_pages_bytes_are_the_frames_it_says():
    hello = re.search(r"^         (83 a1 .*)$", PAGE, re.MULTILINE)
    value = re.search(r"h'(\w+)'", PAGE)

    assert hello is not None and value is not None
    asked = frames.unpack_from_client(bytes.fromhex(hello[1]))
    assert asked == frames.Hello(version=(1, 0), since="begin")
    assert msgpack.unpackb(bytes.fromhex(value[1])) == 0.001
