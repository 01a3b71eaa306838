"""A recording as a SQLite database."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from railbus.bus.recording import Recording
from railbus.schemas.codec import VALUE_LIMITS, unpack
from railbus.schemas.events import Committed, Gap

from .jsonable import jsonable
from .scalars import ROWS, numbers_of

if TYPE_CHECKING:
    import sqlite3

SCHEMA = """
CREATE TABLE run (run_id TEXT, incarnation INTEGER, about TEXT, notes TEXT);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, hook TEXT, epoch INTEGER, step INTEGER, time REAL, wall_time REAL
);
CREATE TABLE acks (seq INTEGER, by TEXT, stops INTEGER, patches INTEGER, error TEXT);
CREATE TABLE stops (seq INTEGER, by TEXT, reason TEXT, scope TEXT);
CREATE TABLE patches (seq INTEGER, by TEXT, key TEXT, value TEXT);
CREATE TABLE scalars (seq INTEGER, name TEXT, value REAL);
CREATE TABLE gaps (first INTEGER, last INTEGER, reason TEXT);
CREATE TABLE log (seq INTEGER, wall_time REAL, level TEXT, logger TEXT, message TEXT);
"""
INDICES = """
CREATE INDEX events_by_hook ON events (hook, seq);
CREATE INDEX events_by_epoch ON events (epoch, step);
CREATE INDEX acks_by_event ON acks (seq);
CREATE INDEX scalars_by_name ON scalars (name, seq);
"""


def write_sqlite(recording: Recording, path: Path) -> None:
    """Write the database at `path`, a new file.

    `acks` holds those that said more than ok, `stops` what the decisions were, `patches` their
    values as JSON (NULL: the key was removed). `scalars` holds the single numbers of events that
    end a step, an evaluation or an epoch; SQLite has no NaN, it is NULL there.
    """
    import sqlite3  # here: who imports railbus.subscribers does not wait for it

    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # Nobody sees the file before it is complete, so a journal would protect nothing.
        db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + SCHEMA)
        db.execute("BEGIN")
        about = recording.about
        texts = msgspec.json.encode(about).decode(), json.dumps(recording.notes)
        _insert(db, "run", about.run_id, about.incarnation, *texts)
        for entry in recording:
            if isinstance(entry, Gap):
                _insert(db, "gaps", entry.first, entry.last, entry.reason)
            else:
                _write(db, entry)
        for line in recording.log():
            wall_time = line.wall_ns / 1e9
            _insert(db, "log", line.seq, wall_time, line.level, line.logger, line.message)
        db.execute("COMMIT")
        db.executescript(INDICES)


def _write(db: "sqlite3.Connection", entry: Committed) -> None:
    event, seq = entry.event, entry.event.seq
    times = event.time_ns / 1e9, event.wall_ns / 1e9
    _insert(db, "events", seq, event.hook.value, entry.epoch, entry.step, *times)
    for ack in entry.acks:
        _insert(db, "acks", seq, ack.by, ack.stop is not None, len(ack.patch or ()), ack.error)
    for stop in entry.decision.stops:
        _insert(db, "stops", seq, stop.by, stop.reason, stop.scope)
    for by, patch in entry.decision.patches:
        for key, packed in patch.items():
            _insert(db, "patches", seq, by, key, None if packed is None else _text(packed))
    if event.hook in ROWS:
        for name, number in numbers_of(entry, event.cb_params).items():
            _insert(db, "scalars", seq, name, float(number))


def _insert(db: "sqlite3.Connection", table: str, *values: Any) -> None:
    places = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO {table} VALUES ({places})", values)


def _text(packed: bytes) -> str:
    return json.dumps(jsonable(unpack(packed, VALUE_LIMITS)))
