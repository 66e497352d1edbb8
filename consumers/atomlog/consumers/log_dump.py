"""Every record of a partition with the verdict of the commit rule on it."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from atomlog.kernel.commit_rule import Effective, Genesis, Stop, Void
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import invalid
from atomlog.kernel.ports import Log, LogRecord
from atomlog.kernel.tail import READ_BYTES, Tail
from atomlog.schemas.record import Malformed, pack


async def log_dump(
    log: Log,
    genesis: Genesis,
    partition: int,
    *,
    since: int = 0,
    until: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AsyncGenerator[dict[str, Any], None]:
    """The records at since ≤ position < until (default: the end at the start), as JSON-ready objects.

    `{"partition", "position", "kind", "term", "owner", "seq", "schema", "chain", "size", "verdict", "reason"}`;
    `size` is of the packed record in bytes; ids are hex; what a malformed record does not tell is null. `verdict` is
    `effective`, `void` (with its reason), `stop` (with the error that stops every reader here) or, behind a stop,
    `unread`. The rule is folded from the beginning, so a late `since` reads everything before it, too.

    `progress` is told how many records of how many were read.

    Raises INVALID_INPUT when `until` lies before `since`, CORRUPT when the log cannot be read.
    """
    if until is not None and until < since:
        raise invalid("until", f"{until} lies before {since}, where the dump begins; write a later position")
    tail = Tail(log, genesis)
    end = await log.end(partition)
    stop = end if until is None else min(until, end)
    position, stopped = 0, None
    while position < stop:
        for one in await log.read(partition, position, bytes_max=READ_BYTES):
            if one.position >= stop:
                return
            verdict, reason, stopped = _verdict(tail, one, stopped)
            position = one.position + 1
            if one.position >= since:
                yield {"partition": partition, **_shown(one), "verdict": verdict, "reason": reason}
        if progress is not None:
            progress(position, stop)


def _verdict(tail: Tail, one: LogRecord, stopped: AtomlogError | None) -> tuple[str, str | None, AtomlogError | None]:
    """(verdict, reason, the error that has stopped the reader by now)."""
    if stopped is not None:
        return "unread", f"the reader stops before it: {stopped.code}", stopped
    match tail.step(one):
        case Void(reason):
            return "void", reason, None
        case Stop(error):
            return "stop", f"{error.code}: {error.message}", error
        case Effective():
            return "effective", None, None


def _shown(one: LogRecord) -> dict[str, Any]:
    record = one.record
    known = {
        "position": one.position,
        "kind": record.kind,
        "term": record.term,
        "owner": None if record.owner is None else record.owner.hex(),
    }
    if isinstance(record, Malformed):
        return {**known, "seq": None, "schema": None, "chain": None, "size": None}
    schema, chain = record.schema.hex(), record.chain.hex()
    return {**known, "seq": record.seq, "schema": schema, "chain": chain, "size": len(pack(record))}
