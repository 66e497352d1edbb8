"""What the rungs over Kafka share: where the brokers are, nodes made for one rung, and owners in this process.

Each rung has a store of its own, with topics of its own that stay on the brokers: give it brokers to throw away.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from atomlog.consumers.bench.ladder import Bench
from atomlog.consumers.bench.writes import batch
from atomlog.consumers.cluster.creation import create_node
from atomlog.consumers.cluster.founding import NodeRequest
from atomlog.consumers.machine import MASTER_KEY, NODE_PEM, Machine
from atomlog.consumers.owners import Owners
from atomlog.consumers.parts import Parts, open_parts
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import partition_of
from atomlog.kernel.kafka.topics import MIN_IN_SYNC, REPLICAS, REPLICATION
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import START, EffectiveRecord, Tail

VARIABLE: Final = "ATOMLOG_BENCH_KAFKA"
WEAK: Final = (REPLICATION, MIN_IN_SYNC)  # what one broker cannot have
PAGE_BYTES: Final = 1024 * 1024


def brokers(environment: Mapping[str, str]) -> Sequence[str]:
    """Addresses of the brokers to measure with; none when nobody named any."""
    return [address for address in environment.get(VARIABLE, "").split(",") if address]


def required_brokers(bench: Bench) -> str:
    """INVALID_INPUT without brokers."""
    found = brokers(bench.machine.environment)
    if not found:
        raise fail("INVALID_INPUT", f"{VARIABLE} names no Kafka brokers; `make bench-kafka` starts some")
    return ",".join(found)


async def make_nodes(bench: Bench, names: Sequence[str], *, partitions: int = 1) -> None:
    """A new store with a node of each name below the rung's directory; three replicas where there are three brokers."""
    bootstrap = required_brokers(bench)
    replication = min(REPLICAS, bootstrap.count(",") + 1)
    first, *others = [f"{bench.directory}/{name}" for name in names]
    whole: dict[str, Any] = {
        "bootstrap": bootstrap,
        "prefix": f"bench-{bench.machine.randomness.token(8).hex()}",
        "replication": replication,
        "partitions": partitions,
        "blobs": f"{bench.directory}/blobs",
        "allow_weak": () if replication == REPLICAS else WEAK,
    }
    await create_node(first, NodeRequest(**whole), machine=bench.machine)
    joining = NodeRequest(**whole, master_key=f"{first}/{MASTER_KEY}", node_pem=f"{first}/{NODE_PEM}")
    for directory in others:
        await create_node(directory, joining, machine=bench.machine)


@asynccontextmanager
async def opened_node(directory: str, machine: Machine, *, read_only: bool = True) -> AsyncIterator[Parts]:
    """A node of a shared store with nothing but its log and its keys."""
    config = StoreConfig.load(machine.files, directory)
    parts = open_parts(directory, config, settings=Settings(), read_only=read_only, machine=machine)
    try:
        await parts.start()
        yield parts
    finally:
        await parts.close()


@asynccontextmanager
async def owning(parts: Parts, partitions: Collection[int]) -> AsyncIterator[Owners]:
    """Owners in this process, without a server that others could ask; these partitions are claimed."""
    owners = await Owners.open(parts, node="bench", endpoint="tls:127.0.0.1:1")
    try:
        for partition in partitions:
            await owners.owners[partition].claim()
        yield owners
    finally:
        await owners.close()


async def effective(parts: Parts, partition: int, position: int = 0) -> list[EffectiveRecord]:
    """The batches that count from `position` on, read anew."""
    tail, found = Tail(parts.log, parts.config.genesis(partition), START), list[EffectiveRecord]()
    while records := await tail.poll(bytes_max=PAGE_BYTES):
        found += [one for one in records if one.kind == "Batch" and one.position >= position]
    return found


def revisions(records: Sequence[EffectiveRecord]) -> int:
    return sum(len(one.batch().revisions) for one in records)


def space_of(partition: int, partitions: int) -> str:
    """A space whose writes go to this partition."""
    names = (f"bench-{number}" for number in range(1_000_000))
    return next(name for name in names if partition_of(name, partitions) == partition)


def requests(token: str, count: int, *, changes: int = 1, space: str = "bench") -> list[dict[str, Any]]:
    """Batches of new texts that no other round has written."""
    return [
        {**batch(number * changes, changes), "space": space, "idempotency_key": f"{token}-{number}"}
        for number in range(count)
    ]
