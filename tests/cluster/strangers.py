"""Whoever may write to the topics of a store and is no node of it, or a node with a program of another day."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.commit_rule import CommitState
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig, KafkaRecord
from atomlog.kernel.kafka.topics import ALLOWABLE
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock, SystemFiles
from atomlog.kernel.tail import Tail
from atomlog.schemas import codec
from atomlog.schemas.record import RULE, Record, chain_after, headers
from tests.oracle.brute_model import Model
from tests.support.commands import Done
from tests.support.zygote import COMMAND, zygote

STRANGER: Final = b"nobody you know."
HOSTILE: Final = (b"\x02" * 10_000, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + bytes(2_000), b"\x7f", b"")
"""Ends of Avro values that crash, freeze or swell a careless decoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A client of the brokers, and the log of the store as it can be read by anybody."""

    client: KafkaClient
    log: KafkaLog
    config: StoreConfig
    prefix: str

    async def send(self, topic: str, partition: int, records: Sequence[KafkaRecord]) -> int:
        """The first one's position, on the topic of this name below the store's prefix."""
        producer = await self.client.producer()
        try:
            return await producer.send(f"{self.prefix}.{topic}", partition, records)
        finally:
            await producer.close()

    async def state(self, partition: int) -> CommitState:
        """At the end of the partition: what its owner knows."""
        tail = Tail(self.log, self.config.genesis(partition))
        end = await self.log.end(partition)
        while tail.checkpoint.position < end:
            await tail.poll()
        return tail.checkpoint.state

    async def judged(self) -> Model:
        """Every record of the log, judged by the oracle."""
        model = Model(log_id=self.config.log_id, partitions=self.config.partitions)
        for partition in range(self.config.partitions):
            end = await self.log.end(partition)
            while (position := model.ends.get(partition, 0)) < end:
                model.apply(partition, await self.log.read(partition, position, bytes_max=1 << 20))
        return model


@asynccontextmanager
async def stranger(bootstrap: str, prefix: str, directory: Path) -> AsyncIterator[Stranger]:
    """`directory`: of a node of the store."""
    config = StoreConfig.load(SystemFiles(), str(directory))
    client = KafkaClient(KafkaConfig(bootstrap=(bootstrap,)), timeout_s=20.0)
    log = KafkaLog(
        client,
        f"{prefix}.atoms",
        config.log_id,
        config.partitions,
        SystemClock(),
        Settings(),
        allow_weak=ALLOWABLE,
    )
    try:
        await client.start()
        yield Stranger(client=client, log=log, config=config, prefix=prefix)
    finally:
        await log.close()
        await client.close()


def next_of(state: CommitState, kind: str = "Batch", tail: bytes = b"") -> Record:
    """What the owner would write next, but for the value, which goes on with `tail` after a sound schema."""
    schema = codec.current(kind).fingerprint
    record = Record(
        rule=RULE,
        kind=kind,
        term=state.term,
        owner=state.owner,
        seq=state.next_seq,
        schema=schema,
        chain=bytes(16),
        value=codec.wrap(schema, tail),
    )
    return chained(state, record)


def chained(state: CommitState, record: Record) -> Record:
    return replace(record, chain=chain_after(state.chain, record))


def sent(record: Record) -> KafkaRecord:
    return KafkaRecord(value=record.value, headers=headers(record))


def edited(record: Record, **changes: bytes | None) -> KafkaRecord:
    """With these headers in place of its own; None: without."""
    kept = [(name, changes.get(name, value)) for name, value in headers(record)]
    return KafkaRecord(value=record.value, headers=[(name, value) for name, value in kept if value is not None])


def of_no_store() -> Sequence[KafkaRecord]:
    """What other programs write."""
    return [
        KafkaRecord(value=None),
        KafkaRecord(value=b""),
        KafkaRecord(value=b'{"a": "line of JSON"}'),
        KafkaRecord(key=b"k", value=b"\xff" * 40, headers=[("trace", b"1"), ("trace", b"2")]),
        *(KafkaRecord(value=tail) for tail in HOSTILE),
    ]


def of_a_stranger(state: CommitState) -> Sequence[KafkaRecord]:
    """Records in the form of the log, of somebody who does not own the partition."""
    foreign = replace(next_of(state), owner=STRANGER)
    claim = replace(next_of(state, "Claim"), owner=STRANGER, seq=0, chain=bytes(16))
    return [
        *(sent(replace(foreign, value=codec.wrap(foreign.schema, tail))) for tail in HOSTILE),
        sent(replace(foreign, value=b"\x00\x00" + foreign.value)),
        sent(replace(foreign, rule=2)),
        sent(replace(foreign, kind="Teleport", schema=b"8 bytes!")),
        sent(replace(foreign, schema=b"8 bytes!")),
        sent(replace(next_of(state, "Upgrade", b"\x12\x00"), owner=STRANGER)),
        sent(replace(foreign, term=0)),
        sent(replace(foreign, term=state.term + 5)),
        sent(claim),
        sent(replace(claim, term=state.term + 2)),
        edited(foreign, seq=b"7"),
        edited(foreign, chain=None),
        edited(foreign, owner=b"short"),
        sent(replace(next_of(state), seq=state.next_seq + 9)),
    ]


async def command(log: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
    """The command line, run to its end; what it says on stderr is in `log`, too."""
    before = log.stat().st_size if log.exists() else 0
    process = await zygote().fork(COMMAND, *arguments, log=log, environment=environment)
    out = await process.stdout.read()
    code = await process.wait()
    return Done(code=code, out=out.decode(), err=log.read_bytes()[before:].decode())


def is_one_clear_line(done: Done, code: str) -> bool:
    """An error as people get it: its code, one line, no traceback."""
    lines = done.err.splitlines()
    return len(lines) == 1 and code in lines[0] and "Traceback" not in done.err + done.out
