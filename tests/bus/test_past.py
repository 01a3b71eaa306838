"""What the ring does not hold any more comes out of the recording (C8, C9)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import to_thread

from railbus.bus import EventBus, Recording
from railbus.bus.tape import Tape
from railbus.schemas import Gap, Hook, Plan
from railbus.subscribers import Callback

from ..subscribers.scripted import DATA, make_trainer
from .recorded import ABOUT, NOTES
from .served import Site, entry, site
from .test_client import covered

PLAN = Plan(mode="train", epochs=1, batch_num=10_000)


class Written(Site):
    """A served run whose events are written down, too."""

    tape: Tape

    def commit(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            one = entry(self.seq, size=size)
            self.tape.write(one)
            self.log.append(one)
            self.seq += 1

    def end(self) -> None:
        """The terminal event, and nothing after it."""
        one = entry(self.seq, Hook.TRAIN_END)
        self.tape.write(one)
        self.log.append(one)
        self.tape.seal()
        self.log.close()


@contextmanager
def written(path: Path, ring: int = 100) -> Iterator[Written]:
    with site(bus=EventBus(ring=ring)) as here:
        here.__class__ = Written
        assert isinstance(here, Written)
        here.log.about = msgspec.structs.replace(ABOUT, plan=PLAN)
        here.tape = Tape(path, here.log.about, "every", NOTES)
        here.log.recording = path
        try:
            yield here
        finally:
            here.tape.close()


def test_a_client_gets_what_the_ring_has_lost_and_then_the_live_run(tmp_path):
    with written(tmp_path) as here:
        here.commit(3000)
        with here.attach() as events:
            first = [next(events) for _ in range(3000)]
            here.commit(500)
            here.end()
            rest = list(events)

    assert covered([*first, *rest]) == list(range(3501))
    assert [*first, *rest][:3500] == [entry(seq).event for seq in range(3500)]


async def test_a_client_that_comes_back_late_gets_what_it_has_missed(tmp_path):
    with anyio.fail_after(30), written(tmp_path) as here:

        def run() -> None:
            here.commit(2000)
            here.end()

        here.commit(1000)
        async with anyio.create_task_group() as group, here.attach(since=7) as events:
            group.start_soon(to_thread.run_sync, run)
            seen = [item async for item in events]

    assert covered(seen) == list(range(7, 3001))
    assert not any(isinstance(item, Gap) for item in seen)


def test_every_and_hooks_count_from_the_runs_first_event_in_the_recording_too(tmp_path):
    with written(tmp_path) as here:
        here.commit(1000)
        here.end()
        hooks = {"on_train_step_end"}
        with here.attach(every=7, hooks=hooks, since=100) as events:
            seen = [item.seq for item in events if not isinstance(item, Gap)]

    assert seen == [seq for seq in range(100, 1000) if (seq + 1) % 7 == 0]


def test_a_slow_reader_of_the_past_loses_nothing_while_the_run_goes_on(tmp_path):
    with written(tmp_path) as here:
        here.commit(2000, size=20_000)
        with here.attach() as events:
            first = [next(events) for _ in range(3)]
            here.commit(2000, size=20_000)
            here.end()
            rest = list(events)

    assert covered([*first, *rest]) == list(range(4001))
    assert not any(isinstance(item, Gap) for item in rest)


def test_where_the_recording_ends_before_the_ring_begins_there_is_a_gap(tmp_path):
    with written(tmp_path) as here:
        here.commit(300)
        here.tape.close()
        here.tape = Tape(tmp_path / "elsewhere", ABOUT, "every", NOTES)
        here.commit(300)
        here.end()
        with here.attach() as events:
            seen = list(events)

    gaps = [item for item in seen if isinstance(item, Gap)]
    assert [(gap.first, gap.last, gap.reason) for gap in gaps] == [(300, 500, "retention")]
    assert covered(seen) == list(range(601))


def test_damage_in_the_recording_is_a_gap(tmp_path):
    with written(tmp_path) as here:
        here.commit(1000)
        here.end()
        (segment,) = Recording(tmp_path).files
        data = segment.read_bytes()
        place = len(data) // 4
        segment.write_bytes(data[:place] + b"\xff" * 64 + data[place + 64 :])
        with here.attach() as events:
            seen = list(events)

    gaps = [item for item in seen if isinstance(item, Gap)]
    assert gaps[0].reason == "damage"
    assert 100 < gaps[0].first < 900
    assert covered(seen) == list(range(1001))


def test_the_json_api_reads_the_recording_from_page_to_page(tmp_path):
    with written(tmp_path) as here, here.http() as http:
        here.commit(2500)
        here.end()
        seen, since = [], 0
        while since < 2501:
            page = http.get(f"/runs/run/events?since={since}&limit=1000").json()
            assert page["gap"] is None
            seen += [event["seq"] for event in page["events"]]
            since = page["next"]

    assert seen == list(range(2501))


def test_server_sent_events_begin_in_the_recording(tmp_path):
    with written(tmp_path) as here, here.http() as http:
        here.commit(500)
        here.end()
        lines = http.get("/runs/run/stream?since=0").text.splitlines()

    assert [int(line[4:]) for line in lines if line.startswith("id: ")] == list(range(501))


@pytest.mark.parametrize("since", [0, 150])
def test_a_run_with_a_recorder_is_read_from_its_first_event_on(tmp_path, since):
    class Last(Callback):
        """Reads the run, from the hook at its end."""

        def on_train_end(self, run_context):
            run_id = run_context.original_args().run_id
            with trainer.bus.observe(since=since, run_id=run_id) as observer:
                self.seen = [next(observer) for _ in range(300)]

    trainer, last = make_trainer(), Last()
    trainer.bus._ring = 64
    trainer.train(50, DATA, callbacks=last, record=tmp_path)

    assert covered(last.seen)[:300] == list(range(since, since + 300))
    assert not any(isinstance(item, Gap) for item in last.seen)


def test_an_observer_that_is_dropped_ends_its_feed(tmp_path):
    with written(tmp_path) as here:
        here.commit(1000)
        observer = here.bus.observe(since=0, run_id="run", buffer=10)
        assert next(observer) == entry(0).event
        (feed,) = [one for one in threading.enumerate() if one.name.startswith("railbus feed")]
        del observer
        feed.join(10)

    assert not feed.is_alive()
