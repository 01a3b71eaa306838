"""Recordings: a run's committed events in files, to be read, searched, checked and repaired (C9)."""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import TypeAlias

import msgspec

from railbus.schemas.errors import ArgumentError, RecordingError
from railbus.schemas.events import Committed, Gap
from railbus.schemas.hooks import Hook
from railbus.schemas.lifecycle import verify

from .about import About
from .folder import NAME, being_written, segments_of
from .observer import hooks_named
from .place import LATEST, Place, place_of
from .reader import Item, NotBegun, Segment, closed
from .segment import LogLine

PAUSE = 0.05  # seconds between two looks at a file that is being written
QUIET = 1.0  # seconds without news after which it is asked whether the writer lives

Entry: TypeAlias = Committed | Gap


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `Recording.verify` has found to be right.

    Attributes:
        sealed: every file was closed by its writer.
        ended: the run's terminal event is there.
    """

    run_id: str
    incarnation: int
    events: int
    gaps: int
    segments: int
    bytes: int
    sealed: bool
    ended: bool


class Recording:
    """A run's committed events, read from its files; iterate it, again and again.

    Yields `Committed` entries in order, and a `Gap` where the recorder had lost events. A file that
    its writer could not close is read as far as it is whole. A recording is untrusted input:
    nothing in it is unpacked or built before its size was checked.

    Args:
        path: a run's directory, its `events` folder, or one `.mcap` file.
        incarnation: which of the processes that carried the run on; the last one by default.

    Attributes:
        about: the run as it was set up: plan, participants, configuration.
        notes: versions, device and revision, by topic.
        incarnations: those that the directory holds.

    Raises:
        RecordingError: there is none, or it is damaged where it says what it is. While iterating:
            at damage; what came before is right.
    """

    def __init__(self, path: str | Path, incarnation: int | None = None) -> None:
        self.path = Path(path)
        found = segments_of(self.path)
        self.incarnations = tuple(found)
        wanted = self.incarnations[-1] if incarnation is None else incarnation
        if wanted not in found:
            raise ArgumentError(f"incarnation must be one of {self.incarnations}, got {wanted!r}")
        self.incarnation = wanted
        with Segment(found[wanted][0]) as first:
            self.about: About = first.about
            self.notes = first.notes

    @property
    def files(self) -> list[Path]:
        """Its files, in the order of events; a run that goes on adds to them."""
        return segments_of(self.path)[self.incarnation]

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def entries(
        self,
        hooks: Collection[Hook | str] | None = None,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        step: int | None = None,
        time: float | None = None,
    ) -> Iterator[Entry]:
        """Its entries from some place on, found without reading what comes before.

        Args:
            hooks: only events of these.
            seq: from this event on.
            epoch: from the first event of this epoch on.
            step: from the `on_train_step_begin` of this step of training on.
            time: from this second of the run on.

        Raises:
            ArgumentError: more than one place, or an unknown hook.
            RecordingError: at damage.
        """
        wanted = hooks_named(hooks)
        place = place_of(seq=seq, epoch=epoch, step=step, time=time)
        entries = self._all() if place is None else self._from(place)
        return (one for one in entries if isinstance(one, Gap) or one.event.hook in wanted)

    def follow(
        self,
        hooks: Collection[Hook | str] | None = None,
        patience: float | None = None,
        *,
        seq: int = 0,
    ) -> Iterator[Entry]:
        """Its entries, those that are still to be written too, up to the run's end.

        Args:
            patience: seconds without news after which it ends; None waits as long as there may be
                a writer.
            seq: from this event on.

        Raises:
            RecordingError: at damage; without `patience` also where the writer was killed.
        """
        wanted, place = hooks_named(hooks), place_of(seq=seq)
        assert place is not None
        entries = dropwhile(lambda one: not place.reached(one), self._followed(patience, place))
        return (one for one in entries if isinstance(one, Gap) or one.event.hook in wanted)

    @property
    def last(self) -> Committed | None:
        """Its newest event, found without reading what comes before; None before the first.

        Raises:
            RecordingError: at damage near it.
        """
        files = self.files
        at, offset, expected = self._start(Place("seq", LATEST), files)
        newest = None
        for entry in _joined(self._contents(files[at:], offset, expected)):
            newest = entry if isinstance(entry, Committed) else newest
        return newest

    def log(self) -> Iterator[LogLine]:
        """The lines of Railbus' own log."""
        contents = self._contents(self.files, None, self._begins)
        return (one for one in contents if isinstance(one, LogLine))

    def verify(self) -> Report:
        """Read everything and check it: sums, counts, order, and the lifecycle's grammar (C4).

        Raises:
            RecordingError, SequenceError: naming the first thing that is wrong.
        """
        counts = {Committed: 0, Gap: 0}
        ended = False

        def counted() -> Iterator[Committed]:
            nonlocal ended
            for entry in self:
                counts[type(entry)] += 1
                if isinstance(entry, Committed):
                    ended = self.about.plan.ends_with(entry.event.hook)
                    if not counts[Gap]:
                        yield entry

        stream = counted()
        verify(self.about.plan, stream, whole=False)
        for _ in stream:
            pass
        sealed = [closed(path) for path in self.files]
        return Report(
            run_id=self.about.run_id,
            incarnation=self.incarnation,
            events=counts[Committed],
            gaps=counts[Gap],
            segments=len(sealed),
            bytes=sum(path.stat().st_size for path in self.files),
            sealed=all(sealed),
            ended=ended,
        )

    def _all(self) -> Iterator[Entry]:
        yield from _joined(self._contents(self.files, None, self._begins))

    def _from(self, place: Place) -> Iterator[Entry]:
        """From the first entry that has reached `place` on."""
        files = self.files
        at, offset, expected = self._start(place, files)
        entries = _joined(self._contents(files[at:], offset, expected))
        return dropwhile(lambda entry: not place.reached(entry), entries)

    def _start(self, place: Place, files: Sequence[Path]) -> tuple[int, int | None, int | None]:
        """A file, a byte in it and the `seq` there that are certainly not past `place`."""
        at, offset, expected = 0, None, self._begins
        for number, path in enumerate(files):
            try:
                with self._segment(path) as segment:
                    row = place.before(segment.index(), number > 0)
            except NotBegun:
                break
            if row is None and number:
                break
            if row is not None and len(row):
                at, offset, expected = number, int(row[0, 0]), int(row[0, 1])
        return at, offset, expected

    @property
    def _begins(self) -> int | None:
        """The `seq` that it has to begin with; None where a file does not tell by its name."""
        named = NAME.fullmatch(self.path.name) if self.path.is_file() else None
        return 0 if not self.path.is_file() else None if named is None else int(named[2])

    def _contents(
        self, files: Sequence[Path], since: int | None, expected: int | None
    ) -> Iterator[Item]:
        """What is in these files, in the first one from byte `since` on."""
        for path in files:
            try:
                segment = self._segment(path)
            except NotBegun:
                if path == files[-1]:
                    return
                raise
            with segment:
                for item in contiguous(segment, since, expected):
                    yield item
                    expected = after(item, expected)
            since = None

    def _followed(self, patience: float | None, place: Place) -> Iterator[Entry]:
        done, since, expected = self._start(place, self.files)
        never, waited = threading.Event(), 0.0
        gone = False  # nobody held the file at the look before
        while patience is None or waited < patience:
            over = False
            files = self.files
            with suppress(NotBegun), self._segment(files[done]) as segment:
                for entry in _joined(contiguous(segment, since, expected)):
                    yield entry
                    waited, gone, expected = 0.0, False, after(entry, expected)
                    if isinstance(entry, Committed) and self.about.plan.ends_with(entry.event.hook):
                        return
                since, over = segment.end, segment.footer is not None
            if over and len(files) > done + 1:
                since, done = None, done + 1
                continue
            if gone and not over:
                raise RecordingError(
                    f"the run was broken off: its writer is gone and did not close '{files[done]}'"
                )
            quiet = patience is None and waited >= QUIET
            gone = quiet and since is not None and not being_written(files[done])
            never.wait(PAUSE)
            waited += PAUSE

    def _segment(self, path: Path) -> Segment:
        segment = Segment(path)
        here, there = segment.about, self.about
        if here != there:
            segment.__exit__()
            raise RecordingError(
                f"'{path}' is of {here.run_id!r}, incarnation {here.incarnation}, which differs from "
                f"{there.run_id!r}, incarnation {there.incarnation}, in the files before"
            )
        return segment


def after(item: Item, expected: int | None) -> int | None:
    """The `seq` of the event that comes next."""
    if isinstance(item, LogLine):
        return expected
    return 1 + (item.last if isinstance(item, Gap) else item.event.seq)


def contiguous(segment: Segment, since: int | None, expected: int | None) -> Iterator[Item]:
    """What is in one file from byte `since` on, each event the next after the one before.

    Raises:
        RecordingError: at damage, or where an event is not the expected one.
    """
    for item in segment.items(since):
        if not isinstance(item, LogLine):
            first = item.first if isinstance(item, Gap) else item.event.seq
            if expected not in (None, first) or (isinstance(item, Gap) and item.last < first):
                raise RecordingError(
                    f"expected event #{expected}, got #{first} in '{segment.path}': events are "
                    f"missing"
                )
            expected = after(item, expected)
        yield item


def _joined(items: Iterable[Item]) -> Iterator[Entry]:
    """Without the log's lines."""
    return (item for item in items if not isinstance(item, LogLine))
