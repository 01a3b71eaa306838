"""A place in the callback list that a participant elsewhere fills (C1, C6, C7)."""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from railbus.schemas.codes import Code
from railbus.schemas.errors import FrameError, told
from railbus.schemas.frames import Answer, Asked, Chunk, Fetch, pack
from railbus.schemas.pieces import chunks

from .peer import Peer
from .sequencer import REMEMBERED, Verdict

logger = logging.getLogger(__name__)


class Slot:
    """Between the thread that trains, which asks, and the service, where the peer answers.

    The turn that is open is shown to the peer, and to one that comes (back) meanwhile; the first
    answer to it counts.

    Attributes:
        refused: answers without effect, and why.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.refused: deque[tuple[Verdict, Answer]] = deque(maxlen=REMEMBERED)
        self._change = threading.Condition()
        self._peer: Peer | None = None
        self._turn: Asked | None = None
        self._run_id: str | None = None
        self._incarnation: int | None = None
        self._letters: deque[Answer | Fetch] = deque()
        # Ended turns; those without an answer were missed.
        self._past: OrderedDict[tuple[int, str], Answer | None] = OrderedDict()
        self._dismissal: tuple[Code, str] | None = None

    def ask(self, turn: Asked, fetch: Callable[[], bytes]) -> Answer | None:
        """Show `turn` to the peer and wait for its answer; from the thread that trains.

        Args:
            fetch: gives the network's parameters, packed.

        Returns:
            None when `turn.seconds` are over.
        """
        until = time.monotonic() + turn.seconds
        with self._change:
            self._turn = turn
            self._run_id, self._incarnation = turn.event.run_id, turn.event.incarnation
            self._show()
        try:
            while (letter := self._next(until)) is not None:
                if isinstance(letter, Answer):
                    return letter
                self._send(letter, fetch)
            return None
        finally:
            with self._change:
                self._end(turn)

    def sit(self, peer: Peer) -> None:
        """`peer` takes the slot; that of the same seat, which it was before, goes.

        Raises:
            FrameError: somebody else has it, or the run goes on without it.
        """
        with self._change:
            if self._dismissal is not None:
                raise FrameError(self._dismissal[1], self._dismissal[0])
            if self._peer is not None:
                if not peer.seat or self._peer.seat != peer.seat:
                    raise FrameError(f"slot {self.name!r} has a participant", Code.TAKEN)
                self._peer.end(Code.TAKEN, "it has come back on another connection")
            self._peer = peer
            self._show()

    def leave(self, peer: Peer) -> None:
        """`peer` has gone; it may come back."""
        with self._change:
            if self._peer is peer:
                self._peer = None

    def answer(self, peer: Peer, answer: Answer) -> Verdict:
        """`peer` answers; what became of it (C6)."""
        with self._change:
            verdict = self._judge(peer, answer)
            if verdict is Verdict.ACCEPTED:
                self._past[answer.seq, answer.hook] = answer
                self._letters.append(answer)
                self._change.notify_all()
            elif verdict is not Verdict.REPEATED:
                self.refused.append((verdict, answer))
                logger.warning(
                    "an ack of %s to %s #%d has no effect: %s",
                    self.name,
                    answer.hook,
                    answer.seq,
                    verdict.value,
                )
        return verdict

    def fetch(self, peer: Peer, fetch: Fetch) -> bool:
        """`peer` asks for the network; False where it is not its turn, or it has asked already."""
        with self._change:
            if peer is not self._peer or not self._is_open or self._letters:
                return False
            self._letters.append(fetch)
            self._change.notify_all()
            return True

    def dismiss(self, code: Code, reason: str = "") -> None:
        """Nobody is asked any more; the first dismissal counts."""
        with self._change:
            if self._dismissal is None:
                self._dismissal = code, reason
                if self._peer is not None:
                    self._peer.end(code, reason)

    @property
    def _is_open(self) -> bool:
        turn = self._turn
        return turn is not None and (turn.event.seq, turn.event.hook) not in self._past

    def _show(self) -> None:
        """Give the open turn to the peer, or answer for one that does not want the hook."""
        if self._turn is None or self._peer is None or not self._is_open:
            return
        event = self._turn.event
        if event.hook in self._peer.hooks:
            self._peer.give(pack(self._turn))
            return
        answer = Answer(seq=event.seq, hook=event.hook.value)
        self._past[event.seq, event.hook] = answer
        self._letters.append(answer)
        self._change.notify_all()

    def _next(self, until: float) -> Answer | Fetch | None:
        with self._change:
            self._change.wait_for(lambda: self._letters, max(until - time.monotonic(), 0.0))
            letter = self._letters.popleft() if self._letters else None
        late = isinstance(letter, Fetch) and time.monotonic() >= until
        return None if late else letter

    def _send(self, asked: Fetch, fetch: Callable[[], bytes]) -> None:
        """What `asked` asks for, or why not: the peer's hook is told what goes wrong here."""
        try:
            pieces = chunks(asked.number, fetch())
        except Exception as error:
            reason = told(error)[:1000]
            pieces = [Chunk(number=asked.number, at=0, size=0, digest="", data=b"", error=reason)]
        with self._change:
            peer = self._peer
        if peer is not None:
            for piece in pieces:
                peer.give(pack(piece))

    def _end(self, turn: Asked) -> None:
        self._turn = None
        self._letters.clear()
        self._past.setdefault((turn.event.seq, turn.event.hook), None)
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)

    def _judge(self, peer: Peer, answer: Answer) -> Verdict:
        turn, found = self._turn, (answer.seq, answer.hook)
        if answer.run_id not in (None, self._run_id):
            return Verdict.FOREIGN
        if answer.incarnation not in (None, self._incarnation):
            return Verdict.FOREIGN
        if found in self._past:
            before = self._past[found]
            if before is None:
                return Verdict.LATE
            return Verdict.REPEATED if before == answer else Verdict.CONFLICT
        if turn is None or found != (turn.event.seq, turn.event.hook):
            return Verdict.FOREIGN
        return Verdict.ACCEPTED if peer is self._peer else Verdict.LATE
