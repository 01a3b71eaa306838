"""What a run's callbacks have cost, as the last line of its recording's log."""

import time
from collections.abc import Iterable, Mapping

import msgspec

from railbus.bus.segment import LogLine
from railbus.schemas.errors import RecordingError

from .participant import Tally

LOGGER = "railbus.tallies"


def line_of(tallies: Mapping[str, Tally], seq: int) -> LogLine:
    """The line that holds `tallies`; those of observers count what they have done by then.

    Args:
        seq: of the event that would come next.
    """
    text = msgspec.json.encode(tallies).decode()
    return LogLine(seq=seq, wall_ns=time.time_ns(), level="INFO", logger=LOGGER, message=text)


def tallies_of(lines: Iterable[LogLine]) -> dict[str, Tally]:
    """The tallies in a recording's log; `{}` where the run was cut off before them.

    Raises:
        RecordingError: the line holds something else.
    """
    found: dict[str, Tally] = {}
    for line in lines:
        if line.logger == LOGGER:
            try:
                found = msgspec.json.decode(line.message, type=dict[str, Tally])
            except msgspec.MsgspecError as error:
                raise RecordingError(f"the log's tallies cannot be read: {error}") from error
    return found
