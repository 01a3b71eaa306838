"""The way of committed entries to whoever writes them down: when the run waits for it."""

from railbus.bus.log import EventLog
from railbus.bus.tap import AGE, Tap
from railbus.schemas import Gap

from .recorded import entry


def test_nothing_is_lost_and_the_end_is_told_after_what_has_come():
    log, tap = EventLog("run"), Tap(100)
    tap.run_id = "run"
    log.attach(tap, None)
    for seq in range(5):
        log.append(entry(seq))
    log.close()

    assert tap.take(0) == [entry(seq) for seq in range(5)]
    assert tap.take(0) is None


def test_what_came_before_it_is_one_gap():
    log, tap = EventLog("run", events=2), Tap(100)
    for seq in range(5):
        log.append(entry(seq))
    log.attach(tap, 0)

    (gap, *rest) = tap.take(0) or []
    assert gap == Gap(run_id="run", first=0, last=2, reason="retention")
    assert rest == [entry(3), entry(4)]


def test_the_run_waits_for_more_than_the_lag_and_no_longer():
    tap = Tap(1)
    tap.offer(entry(0))
    assert not tap._waits()
    tap._put(entry(1))
    assert tap._waits()

    taken = tap.take(0)
    assert taken is not None and tap._waits()
    tap.done(taken)
    assert not tap._waits()


def test_the_run_waits_for_an_entry_that_has_waited_for_too_long():
    tap = Tap(4096)
    tap.offer(entry(0))
    assert not tap._waits()
    tap._oldest -= AGE
    assert tap._waits()

    tap.done(tap.take(0) or [])
    assert not tap._waits()


def test_a_closed_tap_makes_nobody_wait():
    tap = Tap(0)
    tap._put(entry(0))
    assert tap._waits()
    tap.close()

    assert not tap._waits()
