"""Recorded runs on a served bus: finished ones, those under way, and those that were broken off."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from railbus.bus import Recording
from railbus.bus.client import attach
from railbus.bus.serving import serving
from railbus.bus.shelf import Shelf
from railbus.bus.tape import Tape
from railbus.bus.tokens import Token
from railbus.schemas import Hook, Plan
from railbus.schemas.errors import ArgumentError, RecordingError
from railbus.schemas.frames import Welcome

from .recorded import ABOUT, NOTES, entries, sample, write
from .served import HELLO, Site, entry, hear, say
from .test_client import covered

PLAN = Plan(mode="train", epochs=1, batch_num=10_000)


@contextmanager
def shelf(directory: Path) -> Iterator[Site]:
    bus, token = Shelf(directory), Token.new()
    with serving(bus, tokens=[token]) as served:
        site = Site.__new__(Site)
        site.bus, site.url, site.token = bus, served.url, token
        yield site


def begin(folder: Path, run_id: str = "run") -> Tape:
    return Tape(folder, msgspec.structs.replace(ABOUT, plan=PLAN, run_id=run_id), "every", NOTES)


def one(seq: int, hook: Hook = Hook.TRAIN_STEP_END, run_id: str = "run"):
    return entry(seq, hook, run_id)


def test_a_finished_run_is_shown_with_all_its_events(tmp_path):
    write(tmp_path / "run", sample())
    with shelf(tmp_path) as here, here.http() as http:
        (run,) = http.get("/runs").json()["runs"]
        shown = http.get("/runs/run/events").json()
        with here.attach() as events:
            seen = list(events)

    assert (run["run_id"], run["state"], run["head"]) == ("run", "ended", 15)
    assert [item["seq"] for item in shown["events"]] == covered(
        [one for one in seen if one.__class__.__name__ == "Event"]
    )
    assert shown["gap"] == {"first": 12, "last": 13, "reason": "retention"}
    assert covered(seen) == list(range(16))


def test_one_runs_own_directory_will_do(tmp_path):
    write(tmp_path / "run", sample())

    assert list(Shelf(tmp_path / "run").runs) == ["run"]


def test_a_run_that_is_being_written_is_followed_to_its_end(tmp_path):
    tape = begin(tmp_path / "run")
    for seq in range(100):
        tape.write(one(seq))
    with shelf(tmp_path) as here, here.http() as http, here.attach() as events:
        state = http.get("/runs/run").json()["state"]
        first = [next(events) for _ in range(100)]
        for seq in range(100, 200):
            tape.write(one(seq))
        tape.write(one(200, Hook.TRAIN_END))
        rest = list(events)
        ended = http.get("/runs/run").json()["state"]
    tape.seal()

    assert (state, ended) == ("runs", "ended")
    assert covered([*first, *rest]) == list(range(201))


def test_live_begins_with_the_next_event(tmp_path):
    tape = begin(tmp_path / "run")
    for seq in range(10):
        tape.write(one(seq))
    with shelf(tmp_path) as here, here.socket() as socket:
        say(socket, msgspec.structs.replace(HELLO, since="live"))
        welcome = hear(socket)
        tape.write(one(10, Hook.TRAIN_END))
        first = hear(socket).events[0]
    tape.seal()

    assert isinstance(welcome, Welcome) and welcome.head == 9
    assert first.seq == 10


def test_a_run_that_was_broken_off_says_so_and_ends(tmp_path):
    tape = begin(tmp_path / "run")
    for seq in range(10):
        tape.write(one(seq))
    tape.close()
    with shelf(tmp_path) as here, here.http() as http:
        state = http.get("/runs/run").json()["state"]
        with here.attach() as events:
            seen = list(events)

    assert state == "broken off"
    assert covered(seen) == list(range(10))


def test_runs_come_in_the_order_in_which_they_began_those_that_begin_later_too(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("railbus.bus.shelf.LOOKS", 0.0)
    times = {"b": 5, "a": 7}
    for name, time in times.items():
        first = one(time, run_id=name)
        write_at(tmp_path / name, first)
    bus = Shelf(tmp_path)
    before = list(bus.runs)
    write_at(tmp_path / "c", one(9, run_id="c"))

    assert before == ["b", "a"]
    assert list(bus.runs) == ["b", "a", "c"]


def write_at(folder: Path, first) -> None:
    event = msgspec.structs.replace(first.event, seq=0)
    tape = begin(folder, event.run_id)
    tape.write(msgspec.structs.replace(first, event=event))
    tape.seal()


def test_nobody_can_steer_a_recorded_run(tmp_path):
    write(tmp_path / "run", sample())
    with shelf(tmp_path) as here, here.http() as http:
        answers = [
            http.post("/runs/run/stop", json={"reason": "enough"}),
            http.post("/runs/run/params", json={"name": "learning_rate", "value": 1.0}),
        ]

    assert [answer.status_code for answer in answers] == [409, 409]
    assert [answer.json()["error"]["code"] for answer in answers] == ["read_only"] * 2


def test_a_client_whose_cursor_is_ahead_of_the_last_look_is_let_in(tmp_path):
    tape = begin(tmp_path / "run")
    tape.write(one(0))
    with shelf(tmp_path) as here, here.attach() as events:
        next(events)
        tape.write(one(1))
        next(events)
        tape.write(one(2, Hook.TRAIN_END))
        with here.attach(since=2) as again:
            seen = list(again)
    tape.seal()

    assert covered(seen) == [2]


def test_what_is_no_recording_is_left_out_and_damage_said_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("railbus.bus.shelf.LOOKS", 0.0)
    write(tmp_path / "run", sample())
    (tmp_path / "notes").mkdir()
    (tmp_path / "bad" / "events").mkdir(parents=True)
    (tmp_path / "bad" / "events" / "000-00000000.mcap").write_bytes(b"\x89MCAP0\r\n" + b"x" * 99)
    bus = Shelf(tmp_path)
    with caplog.at_level(logging.WARNING):
        names = [list(bus.runs), list(bus.runs)]

    assert names == [["run"], ["run"]]
    assert [record.message.split("'")[1] for record in caplog.records] == [str(tmp_path / "bad")]


def test_another_incarnation_takes_the_place_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr("railbus.bus.shelf.LOOKS", 0.0)
    write(tmp_path / "run", entries(sample())[:3])
    bus = Shelf(tmp_path)
    before = bus.runs["run"].about
    write(tmp_path / "run", sample(), about=msgspec.structs.replace(ABOUT, incarnation=1))
    after = bus.runs["run"].about

    assert before is not None and after is not None
    assert (before.incarnation, after.incarnation) == (0, 1)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="there is no directory"):
        Shelf(tmp_path / "none")


def test_an_observer_in_this_process_reads_a_shelf_too(tmp_path):
    write(tmp_path / "run", sample())
    bus = Shelf(tmp_path)
    assert list(bus.runs) == ["run"]

    with bus.observe(since=0, run_id="run") as observer:
        assert covered(list(observer)) == list(range(16))


def test_a_client_that_asks_for_what_is_still_to_come_is_refused(tmp_path):
    write(tmp_path / "run", sample())
    with shelf(tmp_path) as here, here.http() as http:
        answer = http.get("/runs/run/events?since=17")

    assert answer.status_code == 400
    with pytest.raises(ArgumentError):
        attach("http://example.org", token=here.token.value)
    assert Recording(tmp_path / "run").last is not None
