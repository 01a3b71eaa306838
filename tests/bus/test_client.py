"""`attach`: each event exactly once or in a gap, whatever happens to the connection."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from anyio import to_thread
from websockets.sync.server import ServerConnection, serve as serve_sockets
from websockets.typing import Subprotocol

from railbus.bus import EventBus
from railbus.bus.client import Attachment, attach
from railbus.bus.serving import serving
from railbus.bus.tokens import Token
from railbus.schemas import Gap, Plan
from railbus.schemas.errors import ArgumentError, RemoteError
from railbus.schemas.frames import (
    SUBPROTOCOL,
    Bye,
    Code,
    Events,
    Missed,
    Welcome,
    pack,
    unpack_from_client,
)

from ..semantics.synthetic import play
from .relay import relay
from .served import entry, site


def covered(items: list[Any]) -> list[int]:
    """Every seq that the items account for, in order."""
    seqs: list[int] = []
    for item in items:
        seqs += range(item.first, item.last + 1) if isinstance(item, Gap) else [item.seq]
    return seqs


def test_a_loop_outside_of_event_loops_gets_every_event_as_it_was():
    with site() as here:
        here.commit(500)
        here.log.close()
        with here.attach() as events:
            seen = list(events)

    assert seen == [entry(seq).event for seq in range(500)]
    assert (events.run_id, events.cursor, events.reconnects) == ("run", 500, 0)


async def test_an_async_loop_follows_a_run_in_another_thread():
    with anyio.fail_after(20), site() as here:

        def run() -> None:
            here.commit(300)
            here.log.close()

        async with anyio.create_task_group() as group, here.attach() as events:
            group.start_soon(to_thread.run_sync, run)
            seen = [item async for item in events]

    assert covered(seen) == list(range(300))


def test_the_run_that_began_last_is_the_default_and_since_live_begins_with_the_next_event():
    with site() as here:
        here.commit(5)
        with here.attach(since="live") as events:
            got: list[Any] = []
            reader = threading.Thread(target=lambda: got.append(next(events)))
            reader.start()
            until(lambda: here.log._observers)
            here.commit(1)
            reader.join()

    assert got[0].seq == 5


def test_hooks_every_and_since_choose_events():
    bus, token = EventBus(), Token.new()
    with serving(bus, tokens=[token]) as served:
        play([], Plan(mode="train", epochs=2, batch_num=4), bus)
        hooks = {"on_train_step_end", "on_train_epoch_end"}
        seen: list[Any] = list(
            attach(served.url, token=token.value, hooks=hooks, every=3, since="begin")
        )
        later: list[Any] = list(attach(served.url, token=token.value, since=seen[2].seq))

    assert [(one.hook.value, one.cb_params.cur_step_num) for one in seen] == [
        ("on_train_step_end", 3),
        ("on_train_epoch_end", 4),
        ("on_train_step_end", 6),
        ("on_train_epoch_end", 8),
    ]
    assert later[0].seq == seen[2].seq


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"token": Token.new().value}, Code.FORBIDDEN),
        ({"run": "none"}, Code.UNKNOWN_RUN),
        ({"hooks": ["on_step"]}, Code.BAD_REQUEST),
        ({"since": 10**6}, Code.BAD_REQUEST),
    ],
)
def test_a_refusal_is_raised_with_its_code_and_not_tried_again(arguments, code):
    with site() as here:
        with pytest.raises(RemoteError) as refused:
            next(here.attach(**arguments))

    assert refused.value.code == code


def test_a_service_that_is_not_there_is_said_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(RemoteError, match="cannot be reached") as refused:
        next(attach(f"ws://127.0.0.1:{port}", token=Token.new().value))
    assert refused.value.code == Code.UNREACHABLE


@pytest.mark.parametrize(
    "url", ["localhost:1", "ftp://localhost", "ws://", "ws://example.org", "ws://localhost?token=x"]
)
def test_an_url_that_is_none_or_would_show_the_token_is_refused(url):
    with pytest.raises(ArgumentError):
        attach(url, token=Token.new().value)


def test_a_slow_reader_gets_gaps_that_cover_what_it_missed_and_the_run_never_waits():
    with site() as here:
        here.commit(1)
        with here.attach() as events:
            seen: list[Any] = [next(events)]
            here.commit(20_000)
            seen += [next(events) for _ in range(10)]
            here.commit(5)
            here.log.close()
            seen += list(events)

    assert covered(seen) == list(range(20_006))
    gaps = [item for item in seen if isinstance(item, Gap)]
    assert gaps and {gap.reason for gap in gaps} == {"slow"}


@pytest.mark.parametrize("every", [1, 3])
def test_events_come_exactly_once_across_cuts_of_the_connection(every):
    with site() as here, relay(here.port) as between:
        here.commit(1)
        events = attach(
            f"ws://127.0.0.1:{between.port}", token=here.token.value, since="begin", every=every
        )
        seen: list[Any] = []
        for cut in range(8):
            here.commit(100)
            while events.cursor < here.seq - every:
                seen.append(next(events))
                if len(seen) == 20 * (cut + 1):
                    between.cut()
            between.cut()
        here.log.close()
        seen += list(events)

    wanted = [seq for seq in range(801) if (seq + 1) % every == 0]
    assert [one.seq for one in seen] == wanted
    assert events.reconnects >= 8


def test_after_a_long_absence_the_missed_events_are_a_gap():
    with site(bus=EventBus(ring=50)) as here, relay(here.port) as between:
        here.commit(10)
        events = attach(f"ws://127.0.0.1:{between.port}", token=here.token.value, since="begin")
        seen: list[Any] = [next(events) for _ in range(10)]
        between.cut()
        until(lambda: not committed(here)._observers)
        here.commit(1000)
        here.log.close()
        seen += list(events)

    assert covered(seen) == list(range(here.seq))
    assert [item.reason for item in seen if isinstance(item, Gap)] == ["retention"]


def committed(here: Any) -> Any:
    """The log after one more event, which detaches who has gone."""
    here.commit(1)
    return here.log


def until(holds: Any) -> None:
    for _ in range(2000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to hold within 10 s")


@contextmanager
def scripted(*connections: Any) -> Iterator[str]:
    """A service that answers the n-th connection with the n-th script of frames."""
    waiting = list(connections)

    def handle(ws: ServerConnection) -> None:
        hello = unpack_from_client(ws.recv())  # type: ignore[arg-type]  # binary
        script = waiting.pop(0)
        for frame in script(hello):
            ws.send(frame if isinstance(frame, bytes) else pack(frame))

    offered = [Subprotocol(SUBPROTOCOL)]
    with serve_sockets(handle, "127.0.0.1", 0, subprotocols=offered, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def welcome(incarnation: int, since: int) -> Welcome:
    return Welcome(version=(1, 0), run_id="run", incarnation=incarnation, since=since, head=9)


def test_when_another_process_carries_the_run_on_a_gap_says_so_and_events_begin_anew():
    asked: list[Any] = []

    def first(hello: Any) -> Any:
        asked.append((hello.since, hello.incarnation))
        return [welcome(0, 0), Events(events=tuple(entry(seq).event for seq in range(3)))]

    def second(hello: Any) -> Any:
        asked.append((hello.run, hello.since, hello.incarnation))
        return [welcome(1, 0), Events(events=(entry(0).event,)), Bye(code=Code.ENDED)]

    with scripted(first, second) as url:
        seen = list(attach(url, token=Token.new().value, since="begin"))

    assert asked == [("begin", None), ("run", 3, 0)]
    assert seen[3] == Gap(run_id="run", first=3, last=-1, reason="restart")
    assert [item.seq for item in seen if not isinstance(item, Gap)] == [0, 1, 2, 0]


def test_it_comes_back_after_a_restart_and_ends_with_the_run():
    def restarts(hello: Any) -> Any:
        return [welcome(0, 0), Missed(first=0, last=4, reason="slow"), Bye(code=Code.RESTART)]

    def goes_on(hello: Any) -> Any:
        return [welcome(0, hello.since), Bye(code=Code.ENDED)]

    with scripted(restarts, goes_on) as url:
        events = attach(url, token=Token.new().value, since="begin")
        seen = list(events)

    assert covered(seen) == [0, 1, 2, 3, 4] and events.reconnects == 1


def test_it_gives_up_when_the_service_stays_away():
    with scripted(lambda hello: [welcome(0, 0), Events(events=(entry(0).event,))]) as url:
        events = attach(url, token=Token.new().value, since="begin", retry_seconds=0.2)
        first = next(events)

    assert not isinstance(first, Gap) and first.seq == 0
    with pytest.raises(RemoteError) as lost:
        next(events)
    assert lost.value.code == Code.UNREACHABLE


@pytest.mark.parametrize(
    "wrong",
    [b"", b"\xc1", b"\x91" * 100_000, pack(welcome(0, 0)), bytes(1 << 20)],
    ids=["nothing", "no token", "deep", "a second welcome", "zeros"],
)
def test_what_is_no_frame_of_the_service_is_an_error_and_detaches(wrong):
    with scripted(lambda hello: [welcome(0, 0), wrong]) as url:
        events = attach(url, token=Token.new().value)
        with pytest.raises(RemoteError) as error:
            next(events)

        assert error.value.code == Code.BAD_FRAME
        assert list(events) == []


def test_closing_it_from_another_thread_ends_the_iteration():
    with site() as here:
        here.commit(1)
        events = here.attach()
        first = next(events)
        ended: list[Any] = []
        reader = threading.Thread(target=lambda: ended.extend(events))
        reader.start()
        events.close()
        reader.join(10)

        assert not reader.is_alive() and ended == [] and first is not None
        until(lambda: not committed(here)._observers)


async def test_cancelling_an_async_loop_detaches():
    with anyio.fail_after(20), site() as here:
        async with anyio.create_task_group() as group:
            group.start_soon(anext, here.attach(since="live"))
            await to_thread.run_sync(until, lambda: here.log._observers)
            group.cancel_scope.cancel()

        await to_thread.run_sync(until, lambda: not committed(here)._observers)


async def test_a_plain_loop_would_block_an_event_loop_and_is_refused():
    events: Attachment = attach("ws://127.0.0.1:1", token=Token.new().value)
    with pytest.raises(ArgumentError, match="async for"):
        next(events)


def test_closing_it_while_it_tries_to_come_back_ends_the_iteration():
    with scripted(lambda hello: [welcome(0, 0), Events(events=(entry(0).event,))]) as url:
        events = attach(url, token=Token.new().value, since="begin")
        next(events)
    ended: list[Any] = []
    reader = threading.Thread(target=lambda: ended.extend(events))
    reader.start()
    events.close()
    reader.join(10)

    assert not reader.is_alive() and ended == []
