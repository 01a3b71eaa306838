"""Workers for callbacks of this process: a lane runs `def` hooks, the loop `async def` hooks."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import anyio
from anyio import (
    TASK_STATUS_IGNORED,
    CapacityLimiter,
    create_task_group,
    from_thread,
    get_cancelled_exc_class,
    to_thread,
)
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import EventLoopToken, current_token

from railbus.bus.publisher import Turn, Walk, resume

from .participant import CallbackParticipant

T = TypeVar("T")


class _Post:
    """One thread of a lane: takes jobs, gives replies, until it gets None or is abandoned."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.replies: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.lock = threading.Lock()
        self.turn: Turn | None = None
        self.since = 0.0
        self.abandoned = False
        self.recalled = False

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                reply = (job(), None)
            except BaseException as error:
                self.replies.put((None, error))
            else:
                self.replies.put(reply)

    def advance(self, lane: "Lane", walk: Walk, turn: Turn | None) -> Turn | None:
        """Answer turns as long as they are the lane's."""
        while turn is not None and turn.worker is lane:
            participant = turn.participant
            assert isinstance(participant, CallbackParticipant)
            self.turn, self.since = turn, time.monotonic()
            error = participant.call(turn)
            with self.lock:
                if self.abandoned:
                    return None
                self.turn = None
                ack = participant.ack(turn, error)
            turn = resume(walk, ack)
            if self.recalled:
                break
        return turn

    def time_left(self, default: float) -> float:
        """Seconds until the present turn is overdue; `default` where there is none."""
        turn = self.turn
        deadline = None if turn is None else turn.participant.role.deadline
        return default if deadline is None else self.since + deadline - time.monotonic()

    def abandon(self) -> bool:
        """Give up on the present turn if it is overdue; its callback keeps the thread."""
        with self.lock:
            self.abandoned = self.time_left(1.0) <= 0
        return self.abandoned


class Lane:
    """Runs a list's `def` hooks in order, in one thread beside the one that trains.

    The participants of a run never run at the same time (C1), so one thread serves them all. A
    callback that misses its deadline keeps that thread, and a new one takes over.
    """

    def __init__(self) -> None:
        self._post = _Post()
        self._shortest: float | None = None
        self._token: EventLoopToken | None = None
        self._group: TaskGroup | None = None

    def expect(self, deadlines: Sequence[float | None]) -> None:
        """The deadlines of those who run here, in seconds."""
        self._shortest = min((one for one in deadlines if one is not None), default=None)

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keep its threads until closed."""
        self._token = current_token()
        async with create_task_group() as self._group:
            self._group.start_soon(self._host, self._post)
            task_status.started()

    def close(self) -> None:
        """Let the thread end; one that is stuck in a callback is left behind."""
        self._post.jobs.put(None)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the lane's thread and wait for it."""
        self._post.jobs.put(function)
        value, error = self._wait(self._post)
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]  # what function returned

    def drive(self, walk: Walk, turn: Turn) -> Turn | None:
        """Answer `turn` and the lane's turns after it; returns the first of another worker."""
        post = self._post
        post.jobs.put(partial(post.advance, self, walk, turn))
        while True:
            try:
                value, error = self._wait(post)
            except Empty:
                if post.abandon():
                    self._replace()
                    return resume(walk, None)
                continue
            if error is not None:
                raise error
            return value  # type: ignore[no-any-return]  # a turn or None

    def _wait(self, post: _Post) -> tuple[Any, BaseException | None]:
        """The reply to the present job; Empty when a deadline may have passed."""
        if self._shortest is None:
            timeout = None
        else:
            timeout = max(post.time_left(self._shortest), 0.0)
        try:
            return post.replies.get(timeout=timeout)
        except Empty:
            raise
        except BaseException:
            self._recall(post)
            raise

    def _recall(self, post: _Post) -> None:
        """The waiting thread was interrupted: let the callback at work finish, and no other.

        Interrupted once more, it is left behind.
        """
        post.recalled = True
        try:
            post.replies.get()
        except BaseException:
            with post.lock:
                post.abandoned = True
                if post.turn is not None:
                    post.turn.participant.revoke()
            self._replace()
            raise
        post.recalled = False

    def _replace(self) -> None:
        assert self._group is not None
        self._post = _Post()
        from_thread.run_sync(self._group.start_soon, self._host, self._post, token=self._token)

    async def _host(self, post: _Post) -> None:
        await to_thread.run_sync(post.serve, abandon_on_cancel=True, limiter=CapacityLimiter(1))
        if post is self._post and self._group is not None:
            self._group.cancel_scope.cancel()


class LoopWorker:
    """Runs a list's `async def` hooks on the event loop that hosts the run."""

    def __init__(self) -> None:
        self._token: EventLoopToken | None = None

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Remember the loop; the hooks bring their own tasks."""
        self._token = current_token()
        task_status.started()

    def close(self) -> None:
        """Nothing is left to end."""

    def drive(self, walk: Walk, turn: Turn) -> Turn | None:
        """Answer `turn` and the loop's turns after it; returns the first of another worker."""
        return from_thread.run(self._advance, walk, turn, token=self._token)

    async def _advance(self, walk: Walk, turn: Turn | None) -> Turn | None:
        while turn is not None and turn.worker is self:
            participant = turn.participant
            assert isinstance(participant, CallbackParticipant)
            ack = None
            with anyio.move_on_after(participant.role.deadline):
                error = await participant.acall(turn, get_cancelled_exc_class())
                ack = participant.ack(turn, error)
            turn = resume(walk, ack)
        return turn
