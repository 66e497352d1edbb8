"""Revisions and their inputs, row by row, in the order of the log: one pass over a partition for both tables."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.export.tables import INPUTS, REVISIONS, Row
from atomlog.kernel import jsontext
from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.content import ContentOpener, Opened, Sealed
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Log
from atomlog.kernel.tail import EffectiveRecord, Tail
from atomlog.projections.ids import Ids
from atomlog.schemas.batch import Batch
from atomlog.schemas.content import Origin
from atomlog.schemas.revision import Clear, Inputs, Slot, decode_clear
from atomlog.schemas.varint import WireError

DEPTH_MAX: Final = 128  # a value is nested as deep as it was accepted
READ_BYTES: Final = 256 * 1024  # of log taken at a stretch: the event loop waits that long, and no longer

Rows = Mapping[str, Sequence[Row]]
"""Table name → its next rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The next rows of some tables, and how much of the source is done: `done` of `total`, None = not known."""

    rows: Rows
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Which revision: of which record, and as what in its batch."""

    partition: int
    position: int
    index: int
    term: int
    batch: Batch
    data: bytes
    clear: Clear
    content_at: int


async def log_rows(
    log: Log, genesis: Genesis, at: Positions, *, ids: Ids, opener: ContentOpener
) -> AsyncGenerator[Piece]:
    """Everything of one partition up to its read position in `at`.

    `ids` must have reached `at`, and stay open. Raises what reading the log raises; CORRUPT of content that is not
    what was written; KEY_UNAVAILABLE when the master key is another one than the store's.
    """
    partition = genesis.partition
    tail, total = Tail(log, genesis), at[partition] + 1
    while tail.checkpoint.position < total:
        before = tail.checkpoint.position
        records = await tail.poll(until=total, bytes_max=READ_BYTES)
        if tail.checkpoint.position == before:
            raise fail("CORRUPT", f"partition {partition}: position {before} cannot be read")
        places = [place for record in records if record.kind == "Batch" for place in _places(partition, record)]
        heads = ids.head_ids([place.clear.atom_id for place in places], at)
        revisions = [
            _revision(place, await _opened(opener, place), current=head == place.clear.revision_id)
            for place, head in zip(places, heads, strict=True)
        ]
        inputs = [row for place in places for row in _inputs(place)]
        rows: Rows = {REVISIONS.name: revisions, INPUTS.name: inputs}
        yield Piece(rows=rows, done=tail.checkpoint.position, total=total)


def _places(partition: int, record: EffectiveRecord) -> Iterator[_Place]:
    batch = record.batch()
    for index, data in enumerate(batch.revisions):
        try:
            clear, at = decode_clear(data)
        except WireError as error:
            raise fail("CORRUPT", f"partition {partition}, position {record.position}: {error}") from None
        yield _Place(partition, record.position, index, record.record.term, batch, data, clear, at)


async def _opened(opener: ContentOpener, place: _Place) -> Opened | Sealed | None:
    """The content; None when it was erased."""
    try:
        return await opener.open_decoded(place.data, place.clear, place.content_at)
    except AtomlogError as error:
        if error.code == "PURGED":
            return None
        raise


def _revision(place: _Place, content: Opened | Sealed | None, *, current: bool) -> Row:
    clear, valid = place.clear, place.clear.valid_time
    return (
        place.partition,
        place.position,
        place.index,
        place.batch.space,
        format_id(clear.atom_id),
        format_id(clear.revision_id),
        _id(clear.previous),
        current,
        clear.retired,
        clear.schema,
        clear.policy,
        place.batch.principal,
        place.term,
        clear.recorded_at_us,
        valid is not None,
        None if valid is None else valid.from_us,
        None if valid is None else valid.to_us,
        isinstance(content, Sealed),
        content is None,
        *_content(content),
        [_slot(slot) for slot in clear.slots],
        list(clear.inputs.encoders),
        clear.inputs.generator,
    )


def _content(content: Opened | Sealed | None) -> tuple[Any, ...]:
    """value, text, kind, activity, model, origins: null where it cannot be read."""
    if not isinstance(content, Opened):
        return (None,) * 6
    provenance = content.provenance
    value = None
    if content.value is not None:
        value = (content.stored or jsontext.canonical(content.value, depth_max=DEPTH_MAX)).decode()
    return (
        value,
        content.text,
        provenance.kind,
        provenance.activity,
        provenance.model,
        [_origin(origin) for origin in content.origins],
    )


def _origin(origin: Origin) -> dict[str, Any]:
    return {
        "source": format_id(origin.source),
        "source_revision": format_id(origin.revision),
        "from_byte": origin.start,
        "to_byte": origin.end,
        "sha256": origin.sha256.hex(),
    }


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "role": slot.role,
        "target": format_id(slot.target),
        "pinned": _id(slot.at),
        "include": slot.include,
        "required": slot.required,
        "order_key": slot.order_key,
    }


def _inputs(place: _Place) -> Iterator[Row]:
    """One row for each version, range and scope that was read to make the revision."""
    inputs: Inputs = place.clear.inputs
    head = (
        place.partition,
        place.position,
        place.index,
        format_id(place.clear.atom_id),
        format_id(place.clear.revision_id),
    )
    for version in inputs.versions:
        known = (format_id(version.atom), format_id(version.revision))
        yield (*head, "version", *known, None, None, None, [], None, None)
    for found in inputs.ranges:
        target = (found.role, format_id(found.target))
        yield (*head, "range", None, None, *target, None, observed(found.observed), found.complete, None)
    for scope in inputs.scopes:
        digest = scope.selector_digest.hex()
        yield (*head, "scope", None, None, None, None, digest, observed(scope.observed), None, scope.empty)


def observed(pairs: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """Positions by partition as a list of structs."""
    return [{"partition": partition, "position": position} for partition, position in pairs]


def _id(raw: bytes | None) -> str | None:
    return None if raw is None else format_id(raw)
