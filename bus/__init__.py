"""The event bus: the defined sequence, its commits, and observers of them."""

from .about import About as About
from .bus import EventBus as EventBus
from .control import Control as Control
from .log import EventLog as EventLog
from .observer import Observer as Observer
from .publisher import (
    Draft as Draft,
    Participant as Participant,
    Publisher as Publisher,
    Turn as Turn,
    Worker as Worker,
)
from .recording import Recording as Recording, Report as Report
from .recover import Recovered as Recovered, recover as recover
from .sequencer import Role as Role, Sequencer as Sequencer, Verdict as Verdict
from .stream import Events as Events, Stream as Stream
