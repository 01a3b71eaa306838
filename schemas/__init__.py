"""What travels: hooks, events, acks, snapshots and the errors around them."""

from .codec import Reference as Reference, pack as pack, unpack as unpack
from .errors import NotRecorded as NotRecorded, RailbusError as RailbusError
from .events import (
    Ack as Ack,
    Committed as Committed,
    Decision as Decision,
    Event as Event,
    Gap as Gap,
    StopRequest as StopRequest,
)
from .hooks import Hook as Hook
from .lifecycle import Fire as Fire, Need as Need, Plan as Plan, lifecycle as lifecycle
from .params import CallbackParams as CallbackParams, Ledger as Ledger, Snapshot as Snapshot
from .tensor import Tensor as Tensor
