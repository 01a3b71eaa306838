"""Callbacks: what users subclass, and the workers that run them."""

from .callback import Callback as Callback, callback_list as callback_list
from .context import RunContext as RunContext
from .roster import Roster as Roster
