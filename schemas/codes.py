"""Why a service refuses a request, or a connection to it ends."""

from enum import StrEnum


class Code(StrEnum):
    """Why a request is refused or a connection ends; `closes` is the WebSocket's close code."""

    ENDED = "ended"  # the run is over and everything was sent
    LEFT = "left"  # the client has had enough
    BAD_FRAME = "bad_frame"  # not a frame, or not in its turn
    TOO_LARGE = "too_large"
    VERSION = "version"
    SLOW_HELLO = "slow_hello"
    RATE = "rate"
    BUSY = "busy"  # too many connections
    UNKNOWN_RUN = "unknown_run"
    NOT_A_PARTICIPANT = "not_a_participant"
    NO_SLOT = "no_slot"  # the run names no slot for this participant
    TAKEN = "taken"  # the slot has a participant
    DETACHED = "detached"  # the run goes on without this participant
    FOREIGN = "foreign"  # acks or fetches out of turn
    UNAUTHORIZED = "unauthorized"  # no token, an unknown one, or one that is no longer valid
    LOCKED_OUT = "locked_out"  # too many wrong tokens from this address
    FORBIDDEN = "forbidden"  # the token lacks the scope
    HOST = "host"
    ORIGIN = "origin"
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    METHOD = "method"
    NOT_UNDER_WAY = "not_under_way"  # the run has not begun, or has ended
    READ_ONLY = "read_only"
    NOT_TRACED = "not_traced"
    BAD_VALUE = "bad_value"
    RESTART = "restart"  # the service goes away; come back
    INTERNAL = "internal"
    UNREACHABLE = "unreachable"  # said by the client alone

    @property
    def closes(self) -> int:
        """The WebSocket's close code: 1008 unless there is one that says more."""
        return _CLOSES.get(self, 1008)


_CLOSES = {
    Code.ENDED: 1000,
    Code.LEFT: 1000,
    Code.TOO_LARGE: 1009,
    Code.INTERNAL: 1011,
    Code.RESTART: 1012,
    Code.BUSY: 1013,
}
