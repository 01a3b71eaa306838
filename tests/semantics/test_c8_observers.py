"""C8: an observer never slows the run and never silently misses an event (buffer and gaps)."""

import gc
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings, strategies as st

from railbus.bus import EventBus
from railbus.bus.log import EventLog
from railbus.bus.observer import Observer
from railbus.schemas import Decision, Event, Gap, Hook, Plan
from railbus.schemas.events import Committed

from .synthetic import play


def entry(seq: int, hook: Hook = Hook.TRAIN_STEP_END, size: int = 1) -> Committed:
    event = Event(
        run_id="run", incarnation=0, seq=seq, hook=hook, time_ns=0, wall_ns=0, snapshot=bytes(size)
    )
    return Committed(event, Decision(run_id="run", seq=seq, hook=hook))


def covered(items: list[Event | Gap]) -> list[int]:
    """Every seq that the items account for, in order."""
    seqs: list[int] = []
    for item in items:
        seqs += range(item.first, item.last + 1) if isinstance(item, Gap) else [item.seq]
    return seqs


@settings(max_examples=150)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(1, 8))
def test_events_and_gaps_account_for_every_event_exactly_once(reads, buffer, ring):
    log, observer = EventLog("run", events=ring), Observer(run_id="run", buffer=buffer)
    log.attach(observer, None)
    items, seq = [], 0
    for read in reads:
        if read and (item := observer._take(lambda: None)) is not None:
            items.append(item)
        elif not read:
            log.append(entry(seq))
            seq += 1
    log.close()
    items += list(observer)

    assert covered(items) == list(range(seq))


@settings(max_examples=100)
@given(st.integers(0, 20), st.integers(1, 8), st.integers(0, 25))
def test_since_is_served_from_the_ring_and_what_it_has_dropped_is_a_gap(count, ring, since):
    log, observer = EventLog("run", events=ring), Observer(run_id="run")
    for seq in range(count):
        log.append(entry(seq))
    log.attach(observer, since)
    log.close()
    items = list(observer)

    assert covered(items) == list(range(since, count))
    gaps = [item for item in items if isinstance(item, Gap)]
    assert bool(gaps) == (since < count - ring)
    assert all(gap.reason == "retention" for gap in gaps)


def test_a_reader_that_never_reads_costs_a_bounded_buffer_and_the_run_goes_on():
    bus = EventBus()
    observer = bus.observe(run_id="run", buffer=3)

    played = play([], Plan(mode="train", epochs=2, batch_num=50), bus)

    items = list(observer)
    assert isinstance(items[0], Gap) and items[0].reason == "slow"
    assert covered(items) == list(range(len(played.log)))
    assert len(items) == 4


def test_a_buffer_is_bounded_in_bytes_too():
    observer = Observer(run_id="run", buffer_bytes=100)
    for seq in range(10):
        observer.offer(entry(seq, size=40))
    observer.close()

    assert [type(item) for item in observer] == [Gap, Event, Event]


def test_hooks_and_every_choose_events_and_every_thins_out_steps_only():
    bus = EventBus()
    observer = bus.observe({"on_train_step_end", Hook.TRAIN_EPOCH_END}, every=3, run_id="run")

    play([], Plan(mode="train", epochs=2, batch_num=4), bus)

    items: list[Any] = list(observer)
    seen = [(item.hook.value, item.cb_params.cur_step_num) for item in items]
    assert seen == [
        ("on_train_step_end", 3),
        ("on_train_epoch_end", 4),
        ("on_train_step_end", 6),
        ("on_train_epoch_end", 8),
    ]


def test_a_dropped_or_closed_observer_is_detached():
    log, kept, closed = EventLog("run"), Observer(), Observer()
    dropped = Observer()
    for observer in (kept, closed, dropped):
        log.attach(observer, None)
    closed.close()
    del dropped, observer
    gc.collect()

    log.append(entry(0))

    assert len(log._observers) == 1
    kept.close()
    items: list[Any] = list(kept)
    assert [item.seq for item in items] == [0]


def test_unknown_hooks_and_numbers_are_refused():
    bus = EventBus()
    for wrong in ({"hooks": {"on_step"}}, {"hooks": "on_train_end"}, {"every": 0}, {"buffer": 0}):
        with pytest.raises(ValueError):
            bus.observe(**wrong)


async def test_an_async_observer_follows_a_run_in_another_thread():
    bus = EventBus()
    observer = bus.observe(run_id="run")
    items: list[Any] = []

    async def watch():
        async for item in observer:
            items.append(item)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            played = await to_thread.run_sync(
                play, [], Plan(mode="train", epochs=2, batch_num=20), bus
            )

    assert [item.seq for item in items] == list(range(len(played.log)))


async def test_observers_of_several_runs_see_each_run_in_its_own_order():
    bus = EventBus()
    observer = bus.observe()
    with anyio.fail_after(20):
        async with bus.open("one") as one, bus.open("two") as two:
            for seq in range(3):
                one.append(entry(seq))
                two.append(entry(seq))
        bus.close()

    items: list[Any] = list(observer)
    assert [item.seq for item in items] == [0, 0, 1, 1, 2, 2]


async def test_a_run_name_is_taken_once_on_a_bus():
    bus = EventBus()
    async with bus.open("one"):
        pass
    with pytest.raises(ValueError, match="'one' is on this bus already"):
        async with bus.open("one"):
            pass
