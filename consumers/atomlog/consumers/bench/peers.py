"""`eventsourcing`, a library of the same kind, as it stores events in SQLite. Only `make bench` installs it.

Its own defaults are kept: SQLite's write-ahead log, one durable transaction a save. Clients are threads, since its
calls block; SQLite lets one of them write at a time.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import StoredEvent

from atomlog.consumers.bench.ladder import Sample
from atomlog.consumers.bench.stopwatch import stopwatch
from atomlog.consumers.machine import Machine

LOCK_SECONDS: Final = 120
TOPIC: Final = "eventsourcing.domain:Aggregate.Created"


class Note(Aggregate):
    """What one of our atoms is there: an aggregate with a text."""

    def __init__(self, text: str) -> None:
        self.text = text


def save_aggregates(machine: Machine, directory: str, texts: Sequence[str], *, warm: int, clients: int) -> Sample:
    """`Application.save` of an aggregate with one event for each text; the first `warm` before the clock starts."""
    application = _application(directory)
    notes = [Note(text=text) for text in texts]
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(application.save, notes[:warm]))
        with stopwatch(machine.clock) as took:
            list(threads.map(application.save, notes[warm:]))
    application.close()
    count = len(texts) - warm
    return Sample(units=count, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=_stored(directory) - warm)


def insert_events(machine: Machine, directory: str, batches: Sequence[Sequence[bytes]], *, warm: int) -> Sample:
    """The recorder below it: a batch of events in one transaction, one batch after the other, encoded before."""
    application = _application(directory)
    events = [[_event(machine, state) for state in batch] for batch in batches]
    insert = application.recorder.insert_events
    for batch in events[:warm]:
        insert(batch)
    with stopwatch(machine.clock) as took:
        for batch in events[warm:]:
            insert(batch)
    application.close()
    before = sum(map(len, batches[:warm]))
    count = sum(map(len, batches)) - before
    return Sample(units=count, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=_stored(directory) - before)


def _application(directory: str) -> "Application[UUID]":
    return Application(
        env={
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": f"{directory}/events.db",
            "SQLITE_LOCK_TIMEOUT": str(LOCK_SECONDS),
        }
    )


def _event(machine: Machine, state: bytes) -> Any:
    originator = UUID(bytes=machine.randomness.token(16))
    return StoredEvent(originator_id=originator, originator_version=1, topic=TOPIC, state=state)


def _stored(directory: str) -> int:
    """How many events a fresh look at the file finds."""
    application = _application(directory)
    try:
        return int(application.recorder.max_notification_id() or 0)
    finally:
        application.close()
