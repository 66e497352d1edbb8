"""Is this still the log that a projection was made from? Asked before the first record is applied."""

from collections.abc import Sequence
from typing import Final

from atomlog.kernel.commit_rule import CommitState, Genesis
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import Log, LogRecord
from atomlog.kernel.tail import READ_BYTES, Checkpoint
from atomlog.schemas.record import Record

WAY_OUT: Final = ". Put the log back; or, if this log is the right one, run `atomlog rebuild {name} --force`"
_LOOK_BACK: Final = 64  # records; the last effective one is nearly always among them


async def check_place(log: Log, genesis: Genesis, place: Checkpoint, name: str) -> None:
    """Hold a checkpoint against the log: its end, and the chain of the last record that counted before it.

    The chain of every later record is checked as it is read; this finds a log that was cut, replaced or rolled back
    while nobody read it, even when nothing was appended since.

    Raises:
        LOG_DIVERGED: the checkpoint is after the log's end, or the log holds another history before it.
    """
    partition = genesis.partition
    end = await log.end(partition)
    if place.position > end:
        await _check_ahead(log, partition, place.position, name)
        return
    if place.state.term == 0:
        return  # nothing counted so far: there is no chain to compare
    stop, span, first = place.position, _LOOK_BACK, 0
    while stop > first:
        start = max(first, stop - span)
        try:
            records = await _between(log, partition, start, stop)
        except AtomlogError as error:
            if (kept := first_kept(error)) is None or kept <= first:
                raise
            first = kept
            continue
        if any(_is_last(found, place.state) for found in records):
            return
        stop, span = start, span * 2
    if first > 0:
        raise expired(name, partition, place.position, first)
    seen = place.state.chain.hex()
    raise diverged(name, partition, f"its chain before {place.position} is {seen}, which this log does not hold")


async def _check_ahead(log: Log, partition: int, position: int, name: str) -> None:
    """After a power cut the published end may be older than what was applied; the log knows whether that is so."""
    try:
        await log.read(partition, position, bytes_max=1)
    except AtomlogError as error:
        if error.code != "LOG_DIVERGED":
            raise
        if (first := first_kept(error)) is not None and first > position:
            raise expired(name, partition, position, first) from None
        end = await log.end(partition)
        why = f"it has applied everything before {position}, the log ends before {end}"
        raise diverged(name, partition, why) from None


def first_kept(error: AtomlogError) -> int | None:
    """The first position that the log still keeps, where the error is that it keeps no earlier ones."""
    if error.code != "LOG_DIVERGED":
        return None
    for detail in error.details:
        first, wanted = detail.get("first"), detail.get("wanted")
        if type(first) is int and type(wanted) is int and wanted < first:
            return first
    return None


def expired(name: str, partition: int, position: int, first: int) -> AtomlogError:
    """LOG_DIVERGED about a log that does not keep what the projection stands on, or has to apply next."""
    message = (
        f"projection {name}, partition {partition}: it stands at {position}, and the log keeps nothing before {first}"
    )
    way_out = f"put the records back from a backup, or copy projections/{name} from a node that has come to {first}"
    return fail(
        "LOG_DIVERGED",
        f"{message}; {way_out}, and set retention.ms=-1",
        details=[{"path": name, "code": "LOG_DIVERGED", "message": message, "partition": partition, "first": first}],
    )


def diverged(name: str, partition: int, why: str) -> AtomlogError:
    """LOG_DIVERGED about one projection, with both ways out."""
    message = f"projection {name}, partition {partition}: {why}; the log was cut, replaced or rolled back"
    return fail(
        "LOG_DIVERGED",
        message + WAY_OUT.format(name=name),
        details=[{"path": name, "code": "LOG_DIVERGED", "message": message, "partition": partition}],
    )


async def _between(log: Log, partition: int, start: int, stop: int) -> Sequence[LogRecord]:
    """The records at start ≤ position < stop."""
    records: list[LogRecord] = []
    while start < stop:
        found = await log.read(partition, start, bytes_max=READ_BYTES)
        if not found:
            break
        records += [one for one in found if one.position < stop]
        start = found[-1].position + 1
    return records


def _is_last(found: LogRecord, state: CommitState) -> bool:
    """Whether this is the record that led to `state`. A Claim carries no chain: the record after it proves it."""
    record = found.record
    if not isinstance(record, Record) or (record.term, record.owner) != (state.term, state.owner):
        return False
    if record.kind == "Claim":
        return state.next_seq == 0
    return record.seq == state.next_seq - 1 and record.chain == state.chain
