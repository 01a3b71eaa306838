"""What travels: hooks, events, acks, snapshots and the errors around them."""

from .errors import RailbusError as RailbusError
