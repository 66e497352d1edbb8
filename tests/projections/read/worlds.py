"""Logs by hand, every index over them, each as far as the test lets it be, and a reader on top."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atomlog.kernel.content import ContentOpener
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Kv, LogRecord, Workers
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from atomlog.projections.base import Projection
from atomlog.projections.encoders import Encoder
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.read.indexes import IndexSet
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.page import Page
from atomlog.projections.read.pins import Pins
from atomlog.projections.read.reader import DEFAULTS, Reader, ReadOptions
from atomlog.projections.read.selectors import Selector
from atomlog.projections.read.shelf import MemoryShelf, Shelf
from atomlog.projections.relations import Relations
from atomlog.projections.vectors import Vectors
from tests.oracle.brute_model import Model
from tests.projections.vectors.worlds import ScriptedEncoder, drained, plain_opener, space_of
from tests.support.batches import LOG_ID, LogBuilder
from tests.support.sealed import CountedRandomness, InlineWorkers

NAMES = ("ids", "relations", "postings", "vectors")
NOW_US = 1_900_000_000_000_000
SPACE = space_of(name="scripted")


class HeldClock:
    """Moves when told to, and when somebody sleeps."""

    def __init__(self) -> None:
        self.us = NOW_US

    def now_us(self) -> int:
        return self.us

    def monotonic_us(self) -> int:
        return self.us

    async def sleep(self, seconds: float) -> None:
        self.us += round(seconds * 1_000_000)


@dataclass(slots=True)
class BuiltLog:
    """The `Log` port over logs made by hand, to read. Counts reads."""

    logs: Sequence[LogBuilder]
    reads: int = 0
    log_id: bytes = LOG_ID
    partitions: int = 0

    def __post_init__(self) -> None:
        self.partitions = len(self.logs)

    @property
    def exclusive(self) -> bool:
        return True

    async def end(self, partition: int) -> int:
        return self.logs[partition].end

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        self.reads += 1
        return self.logs[partition].log_records[position : position + (1 if bytes_max == 1 else 5)]

    async def acquire(self, partition: int) -> None: ...
    async def append(self, partition: int, records: Sequence[object]) -> None:
        raise AssertionError("a read appends nothing")

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        return position < self.logs[partition].end

    async def renew(self, partition: int) -> None: ...
    async def close(self) -> None: ...


@dataclass(kw_only=True)
class World:
    """`follow` applies; `on_catch_up` says what a read that waits gets to see."""

    directory: Path
    logs: Sequence[LogBuilder] = field(default_factory=lambda: [LogBuilder()])
    new_kv: Callable[[], Kv] = MemoryKv
    shelf: Shelf = field(default_factory=MemoryShelf)
    settings: Settings = field(default_factory=Settings)
    content: ContentOpener = field(default_factory=plain_opener)
    encoders: Mapping[str, Encoder] = field(default_factory=lambda: {SPACE.id: ScriptedEncoder(SPACE)})
    window: int = 1_000_000
    seed: str = "read"
    shard_rows: int = 512
    on_catch_up: Callable[[Sequence[str], Positions], object] = lambda names, positions: None
    clock: HeldClock = field(default_factory=HeldClock)

    def __post_init__(self) -> None:
        self.kvs = {name: self.new_kv() for name in NAMES}
        self.waited: list[tuple[tuple[str, ...], dict[int, int]]] = []
        self.removed: set[str] = set()
        self.leases = 0
        self.brute = Model(partitions=len(self.logs))
        self._known = [0] * len(self.logs)
        self.log = BuiltLog(self.logs)
        self.open()

    def open(self) -> None:
        """Indexes, journal and reader over the same stores: what a restart does."""
        partitions = len(self.logs)
        self._sets: dict[tuple[object, ...], IndexSet] = {}  # the same for every read, as in a store
        self.ids = Ids(self.kvs["ids"], partitions)
        self.relations = Relations(self.kvs["relations"], partitions)
        self.postings = Postings(self.kvs["postings"], partitions, window=self.window)
        self.vectors = Vectors(
            self.kvs["vectors"],
            partitions,
            spaces=[encoder.space for encoder in self.encoders.values()],
            shard_rows=self.shard_rows,
            directory=str(self.directory / "shards"),
            files=SystemFiles(),
            workers=InlineWorkers(),
            settings=self.settings,
            content=self.content,
            encoders=self.encoders,
        )
        self.journal = self.journal_with(InlineWorkers(), f"{self.seed}{id(self)}")
        self.reader = Reader(
            indexes=self,
            content=self.content,
            journal=self.journal,
            encoders=self.encoders,
            log=self.log,
            clock=self.clock,
            settings=self.settings,
            catch_up=self._catch_up,
            pins=Pins(self.clock, self.settings.cursor_ttl_ms),
        )

    def journal_with(self, workers: Workers, seed: str) -> Journal:
        """A journal over the world's shelf."""
        randomness = CountedRandomness(seed)
        return Journal(self.shelf, clock=self.clock, randomness=randomness, workers=workers, settings=self.settings)

    @property
    def log0(self) -> LogBuilder:
        return self.logs[0]

    @asynccontextmanager
    async def lease(self, names: Sequence[str]) -> AsyncIterator[IndexSet]:
        def present(name: str) -> Any:
            return None if name in self.removed or name not in names else getattr(self, name)

        found = self.ids, present("relations"), present("postings"), present("vectors")
        if found not in self._sets:
            ids, relations, postings, vectors = found
            generations = dict.fromkeys(NAMES, "g000001")
            self._sets[found] = IndexSet(
                ids=ids, relations=relations, postings=postings, vectors=vectors, generations=generations
            )
        self.leases += 1
        yield self._sets[found]
        self.leases -= 1

    async def _catch_up(self, names: Sequence[str], positions: Positions, deadline_us: int) -> None:
        assert self.leases == 0, "a read that waits holds an index, which a rebuilt one cannot replace"
        self.waited.append((tuple(names), dict(positions)))
        self.on_catch_up(names, positions)

    def apply(self, name: str, partition: int = 0, until: int | None = None) -> None:
        """Bring one index to the next position `until`, the log's end unless given."""
        index: Projection = getattr(self, name)
        log = self.logs[partition]
        before, after = index.checkpoint(partition).position, log.end if until is None else until
        if after > before:
            records = [record for record in log.records if before <= record.position < after]
            index.apply(partition, records, log.checkpoints[after])

    def come_along(self, until: int | None = None) -> None:
        """From now on an index that is waited for comes to the next position `until`, the log's end unless given."""

        def come(names: Sequence[str], positions: Positions) -> None:
            for name in names:
                for partition in positions:
                    self.apply(name, partition, until)

        self.on_catch_up = come

    async def follow(self, *names: str) -> None:
        """Bring these indexes (all, unless named) to the end, embeddings too."""
        for partition, log in enumerate(self.logs):
            for name in names or NAMES:
                self.apply(name, partition)
            records = [record for record in log.records if record.position >= self._known[partition]]
            self.brute.apply(partition, records)
            self._known[partition] = log.end
        if "vectors" in (names or NAMES):
            await drained(self.vectors)

    async def read(self, selector: Selector, **options: Any) -> Page:
        return await self.reader.read(selector, ReadOptions(**options) if options else DEFAULTS)

    async def pages(self, selector: Selector, *, limits: Sequence[int] = (), **options: Any) -> list[Page]:
        """Every page, of the given sizes in turn."""
        found: list[Page] = []
        turn = 0
        while True:
            limit = limits[turn % len(limits)] if limits else None
            page = await self.read(selector, limit=limit, **options)
            found.append(page)
            if page.continuation is None:
                return found
            options = {"continuation": page.continuation}
            turn += 1
            assert turn < 10_000, "the pages do not end"


NewWorld = Callable[..., World]


def atoms_of(*pages: Page) -> list[bytes]:
    return [row.atom for page in pages for row in page.atoms]
