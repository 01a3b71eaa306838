"""Workers for callbacks of this process: a lane runs `def` hooks, the loop `async def` hooks."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import anyio
from anyio import (
    TASK_STATUS_IGNORED,
    CapacityLimiter,
    create_task_group,
    from_thread,
    to_thread,
)
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from railbus.bus.observer import INTERRUPT_POLL
from railbus.bus.publisher import Answer, Turn, Walk, resume
from railbus.schemas.events import Ack

from .participant import CallbackParticipant

T = TypeVar("T")
LOOP_SHARE = 0.005  # seconds that a burst of hooks may keep the event loop to itself


class _Job:
    """A call for a lane's thread, and what became of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.done: SimpleQueue[None] = SimpleQueue()
        self.finished = False
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error
        self.finished = True
        self.done.put(None)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class _Post:
    """One thread of a lane: takes jobs until it gets None or is abandoned."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.participant: CallbackParticipant | None = None
        self.since = 0.0
        self.abandoned = False
        self.recalled = False

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()

    def put(self, function: Callable[[], Any]) -> _Job:
        job = _Job(function)
        self.jobs.put(job)
        return job

    def advance(self, lane: "Lane", walk: Walk, turn: Turn | None) -> Turn | None:
        """Answer turns as long as they are the lane's."""
        while turn is not None and turn.worker is lane:
            participant = turn.participant
            assert isinstance(participant, CallbackParticipant)
            self.since = time.monotonic()
            self.participant = participant
            error = participant.call(turn)
            with self.lock:
                if self.abandoned:
                    return None
                self.participant = None
                ack = participant.ack(turn, error)
            turn = resume(walk, ack)
            if self.recalled:
                break
        return turn

    def time_left(self, default: float | None) -> float | None:
        """Seconds until the present turn is overdue; `default` where it never is."""
        participant = self.participant
        deadline = None if participant is None else participant.role.deadline
        return default if deadline is None else max(self.since + deadline - time.monotonic(), 0.0)

    def abandon(self) -> bool:
        """Give up on the present turn if it is overdue; its callback keeps the thread."""
        with self.lock:
            self.abandoned = self.time_left(None) == 0.0
        return self.abandoned

    def desert(self) -> None:
        """Give up on the present turn, whatever its deadline."""
        with self.lock:
            self.abandoned = True
            if self.participant is not None:
                self.participant.revoke()


class Lane:
    """Runs a list's `def` hooks in order.

    The participants of a run never run at the same time (C1), so one thread serves them all. That
    is the one that trains, which waits for them anyway: a hop to another thread and back costs
    more than three callbacks (50-120 us). Only a deadline needs a thread that can be left behind:
    then the lane has one of its own, and a new one takes over when a callback keeps it (C7).

    Args:
        deadlines: of those who run here, in seconds.
    """

    def __init__(self, deadlines: Sequence[float | None]) -> None:
        self.shortest = min((one for one in deadlines if one is not None), default=None)
        self._post = _Post()
        self._token: EventLoopToken | None = None
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keep its threads until closed."""
        self._token = current_token()
        async with create_task_group() as self._group:
            if self.shortest is not None:
                self._group.start_soon(self._host, self._post)
            task_status.started()

    def close(self) -> None:
        """Let the thread end; one that is stuck in a callback is left behind."""
        self._post.jobs.put(None)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` where the callbacks run, and wait for it."""
        if self.shortest is None:
            return function()
        post = self._post
        job = post.put(function)
        self._wait(post, job, None)
        return job.result()  # type: ignore[no-any-return]  # what function returned

    def drive(self, walk: Walk, turn: Turn) -> Turn | None:
        """Answer `turn` and the lane's turns after it; returns the first of another worker."""
        post = self._post
        if self.shortest is None:
            return self._advance(walk, turn)
        job = post.put(partial(post.advance, self, walk, turn))
        while not self._wait(post, job, post.time_left(self.shortest)):
            if post.abandon():
                self._replace()
                return resume(walk, Answer.EXPIRED)
        return job.result()  # type: ignore[no-any-return]  # a turn or None

    def _advance(self, walk: Walk, turn: Turn | None) -> Turn | None:
        """The same in the calling thread, where nobody has a deadline."""
        while turn is not None and turn.worker is self:
            participant = turn.participant
            assert isinstance(participant, CallbackParticipant)
            turn = resume(walk, participant.ack(turn, participant.call(turn)))
        return turn

    def _wait(self, post: _Post, job: _Job, timeout: float | None) -> bool:
        """Whether `job` was finished within `timeout` seconds."""
        try:
            job.done.get(timeout=timeout)
        except Empty:
            return False
        except BaseException:
            self._recall(post, job)
            raise
        return True

    def _recall(self, post: _Post, job: _Job) -> None:
        """The waiting thread was interrupted: let the callback at work finish, and no other.

        Interrupted once more, it is left behind. The interrupt may have come after the job's end
        was noticed, hence the look at `finished`.
        """
        post.recalled = True
        try:
            while not job.finished:
                with suppress(Empty):
                    job.done.get(timeout=INTERRUPT_POLL)
        except BaseException:
            post.desert()
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
        since = time.monotonic()
        while turn is not None and turn.worker is self:
            if time.monotonic() - since > LOOP_SHARE:
                await checkpoint()
                since = time.monotonic()
            participant = turn.participant
            assert isinstance(participant, CallbackParticipant)
            ack: Ack | Answer = Answer.EXPIRED
            with anyio.move_on_after(participant.role.deadline):
                error = await participant.acall(turn)
                ack = participant.ack(turn, error)
            turn = resume(walk, ack)
        return turn
