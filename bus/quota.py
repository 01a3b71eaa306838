"""How often, how many, how wrong: what a peer may cost, judged on times that come in as values."""

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable

import msgspec


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What a service allows its peers; the defaults suit a handful of watchers.

    Attributes:
        body: bytes of a request's body, or of a message to the WebSocket.
        body_seconds: for the whole body to arrive.
        send_seconds: for the peer to take what it is sent; then it is abandoned.
        rate: messages or requests a second, on average; `burst` at once.
        connections: open requests and WebSockets in all, and `each` per token.
        failures: wrong tokens from one address within `lock_seconds`, for which it is then locked out.
    """

    body: int = 64 << 10
    body_seconds: float = 10.0
    send_seconds: float = 5.0
    rate: float = 200.0
    burst: int = 400
    connections: int = 32
    each: int = 8
    failures: int = 10
    lock_seconds: float = 60.0


class Rate:
    """A bucket of `burst` tokens that fills with `rate` of them a second."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), now

    def take(self, now: float) -> bool:
        """Whether one more is within it."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        """The last one was asked for, and does not count."""
        self._left += 1


class Lockout:
    """Addresses that have shown too many wrong tokens.

    Args:
        remembered: how many addresses; the one that failed longest ago makes room.
    """

    def __init__(self, failures: int, seconds: float, remembered: int = 1024) -> None:
        self._failures, self._seconds, self._remembered = failures, seconds, remembered
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def locked(self, address: str, now: float) -> bool:
        """Whether this one is locked out."""
        times = self._times.get(address)
        if times is None:
            return False
        return len(times) == self._failures and now - times[0] < self._seconds

    def failed(self, address: str, now: float) -> None:
        """It has shown a wrong token."""
        times = self._times.setdefault(address, deque(maxlen=self._failures))
        times.append(now)
        self._times.move_to_end(address)
        while len(self._times) > self._remembered:
            self._times.popitem(last=False)


class Seats:
    """Open connections: `connections` in all, `each` per holder."""

    def __init__(self, connections: int, each: int) -> None:
        self._most, self._each = connections, each
        self._taken: Counter[Hashable] = Counter()

    def take(self, holder: Hashable) -> bool:
        """Whether there was a seat; `leave` gives it back."""
        if self._taken[holder] >= self._each or self._taken.total() >= self._most:
            return False
        self._taken[holder] += 1
        return True

    def leave(self, holder: Hashable) -> None:
        """Give it back."""
        self._taken[holder] -= 1
        if not self._taken[holder]:
            del self._taken[holder]
