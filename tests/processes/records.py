"""What the log of a store really holds, record by record."""

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import format_id
from atomlog.kernel.tail import Tail
from atomlog.schemas.revision import decode_clear

Place = tuple[int, int]


async def batches_in_the_log(store: AsyncStore) -> dict[Place, list[tuple[str, str]]]:
    """(partition, position) of each effective batch → its (atom, revision)s."""
    parts = store._parts
    found: dict[Place, list[tuple[str, str]]] = {}
    for partition in range(parts.config.partitions):
        end, tail = await parts.log.end(partition), Tail(parts.log, parts.config.genesis(partition))
        while tail.checkpoint.position < end:
            for record in await tail.poll():
                if record.kind == "Batch":
                    clears = [decode_clear(revision)[0] for revision in record.batch().revisions]
                    found[partition, record.position] = [
                        (format_id(clear.atom_id), format_id(clear.revision_id)) for clear in clears
                    ]
    return found
