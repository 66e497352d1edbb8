"""What a replayed store is made of: the log up to the target, and keys, blobs and embeddings as they are now."""

import re
from collections.abc import Callable
from itertools import islice
from typing import Final

from atomlog.consumers.parts import Parts
from atomlog.kernel.blobs import DirectoryBlobStore
from atomlog.kernel.commit_rule import Genesis, Stop
from atomlog.kernel.errors import fail
from atomlog.kernel.keystore import SqliteKeyStore
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import KeyPage, Log
from atomlog.kernel.rocks import open_primary, open_secondary
from atomlog.kernel.tail import Checkpoint, Tail
from atomlog.schemas.record import Malformed, Record

GROUP_BYTES: Final = 1024 * 1024  # of log read and appended at once
PAGES_AT_ONCE: Final = 64
CACHE_PAIRS_AT_ONCE: Final = 1_000
CACHE: Final = "projections/vectors/cache"
_AFTER_ALL: Final = b"\xff" * 64  # after every key of the cache, which have 40 bytes
_BYTE: Final = re.compile("[0-9a-f]{2}")
_BLOB: Final = re.compile("[0-9a-f]{64}")


async def copy_log(parts: Parts, store: str, until: Positions, progress: Callable[[int, int], None]) -> int:
    """Append every record up to the target to the log in `store`, folding it on the way; how many were not there."""
    machine, config = parts.machine, parts.config
    log = EmbeddedLog(
        files=machine.files,
        workers=machine.workers,
        clock=machine.clock,
        directory=store,
        log_id=config.log_id,
        partitions=config.partitions,
        settings=parts.settings,
    )
    done, copied, total = 0, 0, sum(until.values()) + len(until)
    try:
        for partition, position in until.items():
            await log.acquire(partition)
            tail = Tail(parts.log, config.genesis(partition), await _copied(parts.log, log, config.genesis(partition)))
            done += tail.checkpoint.position
            while tail.checkpoint.position <= position:
                count = await _copy_group(parts.log, log, tail, position)
                done, copied = done + count, copied + count
                progress(done, total)
    finally:
        await log.close()
    return copied


async def _copied(source: Log, target: Log, genesis: Genesis) -> Checkpoint:
    """Where a copy that was begun before ends; CORRUPT when it does not end as the source does there."""
    tail = Tail(target, genesis)
    while (before := tail.checkpoint.position) < await target.end(genesis.partition):
        await tail.poll()
        if tail.checkpoint.position == before:
            raise fail("CORRUPT", f"partition {genesis.partition}: position {before} of the copy cannot be read")
    if before:
        found = [await log.read(genesis.partition, before - 1, bytes_max=1) for log in (source, target)]
        if found[0][0].record != found[1][0].record:
            message = f"partition {genesis.partition}, position {before - 1}: what was copied is not what the log has"
            raise fail("CORRUPT", f"{message}; replay again")
    return tail.checkpoint


async def _copy_group(source: Log, target: Log, tail: Tail, last: int) -> int:
    partition = tail.genesis.partition
    found = await source.read(partition, tail.checkpoint.position, bytes_max=GROUP_BYTES)
    records: list[Record] = []
    for one in found:
        if one.position > last:
            break
        verdict = tail.step(one)
        if isinstance(verdict, Stop):
            raise verdict.error
        if isinstance(one.record, Malformed):
            raise fail(
                "CORRUPT", f"partition {partition}, position {one.position}: {one.record.reason}; it cannot be copied"
            )
        records.append(one.record)
    if not records:
        raise fail("CORRUPT", f"partition {partition}: position {tail.checkpoint.position} cannot be read")
    await target.append(partition, records)
    return len(records)


async def copy_keys(parts: Parts, store: str) -> None:
    """Every key page as it is now, destroyed keys zeroed."""
    keys = SqliteKeyStore(f"{store}/keys.sqlite", parts.machine.workers)
    try:
        for partition in range(parts.config.partitions):
            pages: list[KeyPage] = []
            for outline in await parts.keys.outlines(partition):
                page = await parts.keys.get(outline.page)
                if page is not None:
                    pages.append(page)
                if len(pages) == PAGES_AT_ONCE:
                    await keys.put(pages)
                    pages = []
            if pages:
                await keys.put(pages)
    finally:
        await keys.close()


async def copy_blobs(parts: Parts, store: str) -> None:
    """Every blob; which of them the copied records name is sealed inside them."""
    files, root = parts.machine.files, parts.blob_directory
    blobs = DirectoryBlobStore(files, parts.machine.workers, f"{store}/blobs")
    for first in filter(_BYTE.fullmatch, files.list(root)):
        for second in filter(_BYTE.fullmatch, files.list(f"{root}/{first}")):
            for name in filter(_BLOB.fullmatch, files.list(f"{root}/{first}/{second}")):
                await blobs.put(await parts.blobs.get(bytes.fromhex(name)))


def copy_embeddings(parts: Parts, store: str, scratch: str) -> None:
    """The embedding cache, so that nothing is embedded again. It may be in use; `scratch` is for reading it then."""
    source = f"{parts.directory}/{CACHE}"
    if not parts.machine.files.exists(source):
        return
    cache_bytes = parts.settings.block_cache_bytes
    here = open_secondary(source, scratch, block_cache_bytes=cache_bytes)
    try:
        parts.machine.files.make_directory(f"{store}/{CACHE}")
        there = open_primary(f"{store}/{CACHE}", block_cache_bytes=cache_bytes)
        try:
            pairs = here.scan(b"", _AFTER_ALL)
            while some := list(islice(pairs, CACHE_PAIRS_AT_ONCE)):
                there.write(some)
            there.sync()
        finally:
            there.close()
    finally:
        here.close()
