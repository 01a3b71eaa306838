"""`Replayed`: what came of a replay."""

from collections.abc import Iterator
from functools import cached_property

import msgspec

from railbus.bus.about import About
from railbus.schemas.events import Ack, Committed, Decision, Gap, StopRequest
from railbus.schemas.hooks import Hook

from .difference import acks_of


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """What one callback wrote at one event.

    Attributes:
        values: new packed values by key of `cb_params`, None for a key that was removed.
        recorded: the callback was not replayed, and this is from the record.
    """

    seq: int
    hook: Hook
    by: str
    values: dict[str, bytes | None]
    recorded: bool


class Replayed(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What replayed callbacks did. It is a stream: the run as it would have been recorded.

    Attributes:
        about: the recorded run, with the callbacks that were replayed in its list.
        committed: the events that were fed, with what the replay decided.
        lines: what was printed meanwhile.
        callbacks: names of the participants that were replayed; the others of `about.roles` said
            what they had said.
        diverged: where the record goes on as a live run of these callbacks would not have, and why;
            None where it nowhere does.
        error: what a callback with the policy `raise`, or its `__exit__`, has raised; the callbacks
            got `on_exception`, and nothing was fed after it.
    """

    about: About
    committed: tuple[Committed, ...]
    lines: tuple[str, ...]
    callbacks: frozenset[str]
    diverged: str | None = None
    error: BaseException | None = None

    def __iter__(self) -> Iterator[Committed | Gap]:
        return iter(self.committed)

    @cached_property
    def acks(self) -> tuple[Ack, ...]:
        """Every ack of the callbacks, plain oks included, in order."""
        return tuple(ack for ack in acks_of(self) if ack.by in self.callbacks)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What the acks of each event amounted to."""
        return tuple(entry.decision for entry in self.committed)

    @cached_property
    def patches(self) -> tuple[Patched, ...]:
        """All that was written into `cb_params`, in order."""
        return tuple(
            Patched(
                seq=decision.seq,
                hook=decision.hook,
                by=by,
                values=dict(values),
                recorded=by not in self.callbacks,
            )
            for decision in self.decisions
            for by, values in decision.patches
        )

    @property
    def marked(self) -> tuple[Patched, ...]:
        """Those of the patches that came from the record."""
        return tuple(patch for patch in self.patches if patch.recorded)

    @property
    def stop(self) -> StopRequest | None:
        """The first wish of a callback to end training (of a lone evaluation: to end it)."""
        mode = self.about.plan.mode
        stops = (stop for decision in self.decisions for stop in decision.stops)
        asked = (stop for stop in stops if stop.scope in ("train", mode))
        return next((stop for stop in asked if stop.by in self.callbacks), None)
