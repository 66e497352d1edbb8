"""One partition, several processes that want to write it, indexes that follow it and a reader: everything of the
program that a state machine drives, on the ports of the simulation, with the indexes in a real RocksDB.

`Cluster` is over the in-memory log, which anybody may append to and which a script makes fail; `KafkaCluster` over a
topic of a real broker, with proxies on the way there; `EmbeddedCluster` over the embedded log on a simulated disk,
whose calls fail, and whose power is cut.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from random import Random
from typing import Any, Final

from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.heads import Heads
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.embedded import EmbeddedLog, create_log
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.owner import Owner
from atomlog.kernel.plan import Rules
from atomlog.kernel.ports import KeyStore, Kv, Log
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import Tail
from atomlog.kernel.world import World
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.read.indexes import IndexSet
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.pins import Pins
from atomlog.projections.read.reader import Reader
from atomlog.projections.read.shelf import MemoryShelf
from atomlog.projections.relations import Relations
from tests.oracle.brute_model import Model
from tests.oracle.readers import raw, segment_records
from tests.projections.stores import Watched, rocks
from tests.simulation.ports import Calls, Killed, Machine, Process, open_primary
from tests.statemachine.broker import BrokerLog, BrokerServer
from tests.statemachine.checkers import corruption_fails_closed, named
from tests.statemachine.loop import SteppedLoop
from tests.support.kernel_world import LOG_ID, RIGHTS
from tests.support.sealed import MASTER

SETTINGS: Final = Settings(write_timeout_ms=2_000, key_wait_ms=50, segment_bytes=16 * 1024, read_timeout_ms=0)
GENESIS: Final = Genesis(log_id=LOG_ID, partition=0, partitions=1)
INDEXES: Final = ("ids", "relations", "postings")
PROCESSES: Final = 3
WINDOW: Final = 1_000_000
STORE: Final = "/store"
DAMAGED: Final = "/damaged"

Index = Ids | Relations | Postings


def new_index(name: str, kv: Kv) -> Index:
    if name == "postings":
        return Postings(kv, 1, window=WINDOW)
    return Ids(kv, 1) if name == "ids" else Relations(kv, 1)


class NamedCalls(Calls):
    """Faults also of the next call whose name has a text in it."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.named: list[tuple[str, str]] = []

    def next(self, what: str, can: Sequence[str]) -> str | None:
        for text, fault in self.named:
            if text in what:
                self.named.remove((text, fault))
                self.faults[self.count + 1] = fault
                break
        return super().next(what, can)


class Node:
    """A process that may write, with what outlives it: its heads, as far as they were written."""

    def __init__(self, process: Process, log: Log, owner: Owner) -> None:
        self.process = process
        self.log = log
        self.owner = owner

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def is_usable(self) -> bool:
        return not self.process.is_dead and self.owner.phase != "failed"


class Cluster:
    """`model` has replayed what the log holds, as far as `look` was called."""

    exclusive = False

    def __init__(self, seed: int) -> None:
        self.loop = SteppedLoop(Random(seed))  # type: ignore[abstract]
        self.chance = Random(seed + 1)
        self.calls = NamedCalls()
        self.machine = Machine(self.loop, self.chance, self.calls)
        self.readers = Machine(self.loop, self.chance, Calls(lambda _: None), self.machine.keys)  # another computer
        self.blobs = MemoryBlobStore()
        self.shelf = MemoryShelf()
        self.model = Model(log_id=LOG_ID)
        self.lives = 0
        self.why = ""  # the last process could not be started
        self.stacks = {name: ExitStack() for name in INDEXES}
        self.kvs: dict[str, Watched] = {}
        self.indexes: dict[str, Index] = {}
        self.builds = dict.fromkeys(INDEXES, 1)
        self.nodes: list[Node | None] = [None] * PROCESSES
        self.make_log()
        for name in INDEXES:
            self.open_index(name, new=True)
        self.follower = self.new_process("follower")
        self.follower_log = self.open_log(self.follower)
        self.open_reader()

    # -- the log

    def make_log(self) -> None:
        self.server: MemoryLogServer = MemoryLogServer(log_id=LOG_ID, partitions=1)

    def open_log(self, process: Process) -> Log:
        return MemoryLog(self.server, name=process.name, on_await=lambda point: self.on_await(process, point))

    def on_await(self, process: Process, point: str) -> None:
        process.call(point, ())

    def raw_records(self) -> list[tuple[list[tuple[str, bytes]], bytes]]:
        return [raw(entry.record) for entry in self.server.records(0)]

    def end(self) -> int:
        """The log's next position, for everybody to see."""
        return self.server.end(0)

    def published(self) -> int:
        """What a reader that begins now is given of it."""
        return self.end()

    def look(self) -> int:
        """Replay what is new in the log; its end."""
        records = self.raw_records()
        for position in range(self.model.ends.get(0, 0), len(records)):
            self.model.replay(0, position, *records[position])
        return len(records)

    # -- processes

    def new_process(self, name: str) -> Process:
        self.lives += 1
        machine = self.readers if name == "reader" else self.machine
        return Process(machine, f"{name} of life {self.lives}", self.lives)

    def start(self, slot: int, *, keep_heads: bool = True) -> bool:
        """A process in this place; False when it could not start (the log or a disk failed it)."""
        process = self.new_process(f"process {slot}")
        starting = self.loop.begin(self._start(process, self.heads_path(slot, keep=keep_heads)), process)
        self.loop.pass_time(1_000_000)
        try:
            if not starting.done():
                raise Killed("it does not start")
            self.nodes[slot] = Node(process, *starting.result())
        except (AtomlogError, OSError, Killed) as error:
            self.why = repr(error)
            process.kill()
            return False
        return True

    async def _start(self, process: Process, heads: str) -> tuple[Log, Owner]:
        """What the program does: with files, whoever wants to write takes the log first."""
        log = self.open_log(process)
        if self.exclusive:
            await log.acquire(0)
        owner = Owner(self.world(process, log, open_primary(process, heads)), 0)
        await owner.start()
        return log, owner

    def heads_path(self, slot: int, *, keep: bool) -> str:
        return f"{STORE}/heads-{slot}" if keep else f"{STORE}/heads-{slot}-{self.lives}"

    def world(self, process: Process, log: Log, heads: Kv) -> World:
        ring = self.ring(process, process.keys)
        return World(
            log=log,
            genesis={0: GENESIS},
            heads=Heads(heads, 1),
            ring=ring,
            content=ContentOpener(ring, self.blobs),
            blobs=self.blobs,
            receipts=None,
            clock=process.clock,
            randomness=process.randomness,
            workers=process.workers,
            rules=Rules(bounds=Bounds(), spaces={}, rights=RIGHTS),
            settings=SETTINGS,
            node="node",
            pid=process.pid,
            endpoint=process.name,
            say=lambda _: None,
            admit=lambda: None,
            clean_tail=lambda partition: not isinstance(log, EmbeddedLog) or not log.tail_was_cut(partition),
        )

    def ring(self, process: Process, keys: KeyStore) -> KeyRing:
        return KeyRing(
            keys,
            master=MASTER,
            randomness=process.randomness,
            clock=process.clock,
            key_wait_ms=SETTINGS.key_wait_ms,
        )

    def kill(self, slot: int) -> None:
        node = self.nodes[slot]
        if node is not None:
            node.process.kill()
            self.nodes[slot] = None

    def node(self, slot: int) -> Node | None:
        """The living process in a place."""
        node = self.nodes[slot]
        return None if node is None or node.process.is_dead else node

    # -- indexes and reads

    def open_index(self, name: str, *, new: bool = False) -> None:
        """Open, or close and open again; `new`: an empty one in its place."""
        if new:
            self.stacks[name].close()
            self.kvs[name] = Watched(self.stacks[name].enter_context(rocks()))
        self.kvs[name].writes_left = None
        self.indexes[name] = new_index(name, self.kvs[name])

    def fail_writes(self, name: str, after: int) -> None:
        """Its store takes so many writes more."""
        self.kvs[name].writes_left = after

    def open_reader(self) -> None:
        """A reader of a new process, over what is kept of receipts and cursors."""
        process = self.new_process("reader")
        self.reader_process = process
        ring = self.ring(process, self.machine.keys)
        self.journal = Journal(
            self.shelf, clock=process.clock, randomness=process.randomness, workers=process.workers, settings=SETTINGS
        )
        self.reader = Reader(
            indexes=self,
            content=ContentOpener(ring, self.blobs),
            journal=self.journal,
            encoders={},
            log=self.follower_log,
            clock=process.clock,
            settings=SETTINGS,
            catch_up=self._catch_up,
            pins=Pins(process.clock, SETTINGS.cursor_ttl_ms),
        )

    def restart_reader(self) -> None:
        """What it had given out is on the shelf by then, as after `flush`."""
        self.loop.until(self.journal.close())
        self.open_reader()

    def follow(self, name: str, count: int) -> bool:
        """Read so many positions more and apply them at once; False when the log did not answer."""
        self.restart_follower()
        index = self.indexes[name]
        tail = Tail(self.follower_log, GENESIS, index.checkpoint(0))
        until = tail.checkpoint.position + count
        with named("resume_equals_uninterrupted"):
            try:
                records = self.loop.until(tail.poll(until=until))
                index.apply(0, records, tail.checkpoint)
            except (OSError, Killed):
                return False
        return True

    def restart_follower(self) -> None:
        """A new process where the old one is gone. Reads go on with its log."""
        if self.follower.is_dead:
            self.follower = self.new_process("follower")
            self.follower_log = self.open_log(self.follower)
            self.restart_reader()

    def rebuilt(self, name: str, until: int, kv: Kv | None = None) -> Index:
        """The index made anew from the first record on, without interruption, as of the next position `until`."""
        self.restart_follower()
        index = new_index(name, kv or MemoryKv())
        tail = Tail(self.follower_log, GENESIS)
        while tail.checkpoint.position < until:
            before = tail.checkpoint.position
            records = self.loop.until(tail.poll(until=until))
            assert tail.checkpoint.position > before, f"the log ends before {until}"
            index.apply(0, records, tail.checkpoint)
        return index

    @asynccontextmanager
    async def lease(self, names: Sequence[str] = INDEXES) -> AsyncIterator[IndexSet]:
        ids, relations, postings = self.indexes["ids"], self.indexes["relations"], self.indexes["postings"]
        assert isinstance(ids, Ids)
        assert isinstance(relations, Relations)
        assert isinstance(postings, Postings)
        generations = {name: f"g{number:06}" for name, number in self.builds.items()}
        yield IndexSet(ids=ids, relations=relations, postings=postings, vectors=None, generations=generations)

    async def _catch_up(self, names: Sequence[str], positions: Mapping[int, int], deadline_us: int) -> None:
        """Indexes move only when the machine says so."""

    # -- the end

    def heal(self) -> None:
        """Nothing fails from now on, and what is on its way arrives or is lost."""
        self.calls.faults.clear()
        self.calls.named.clear()
        if not self.exclusive:
            self.server.heal()
            for request in self.server.in_flight:
                (self.server.deliver if self.chance.random() < 0.5 else self.server.drop)(request.number)
            self.server.let_go()

    def stop(self, slot: int) -> None:
        """End a process in an orderly way, as far as that works."""
        node = self.node(slot)
        if node is not None:
            self.loop.begin(_closed(node), node.process)
            self.loop.pass_time(3_000_000)
            self.kill(slot)

    def check_damage(self) -> None:
        """Of a log on files: see `EmbeddedCluster`."""

    def close(self) -> None:
        for stack in self.stacks.values():
            stack.close()
        self.loop.end()


class EmbeddedCluster(Cluster):
    exclusive = True
    heads_lost = 0

    def make_log(self) -> None:
        process = self.new_process("maker")
        process.files.make_directory(STORE)
        process.files.sync_directory("")
        create_log(process.files, STORE, LOG_ID, 1)
        process.kill()

    def open_log(self, process: Process, directory: str = STORE) -> Log:
        return EmbeddedLog(
            files=process.files,
            workers=process.workers,
            clock=process.clock,
            directory=directory,
            log_id=LOG_ID,
            partitions=1,
            settings=SETTINGS,
            on_fatal=process.end,
            process_id=lambda: process.pid,
        )

    def heads_path(self, slot: int, *, keep: bool) -> str:
        """Only who holds the log opens the heads, so that all may have the same."""
        if not keep:
            self.heads_lost += 1
        return f"{STORE}/heads-{self.heads_lost}"

    def files(self) -> dict[str, bytes]:
        """Name → content of the files of the log."""
        disk, path = self.machine.disk, f"{STORE}/log/0"
        names = sorted(disk.directory(path).names)
        return {name: bytes(inode.cached) for name in names if (inode := disk.find(f"{path}/{name}")) is not None}

    def raw_records(self) -> list[tuple[list[tuple[str, bytes]], bytes]]:
        """Below the published end; with a power cut that may be older than what was seen, which then still stands."""
        files = self.files()
        end = self.end()
        found: list[Any] = []
        link = bytes(16)
        for name in sorted(name for name in files if name.endswith(".seg")):
            if len(found) < end or not found:
                records, link = segment_records(files[name], len(found), link, end)
                found += records
        return found

    def end(self) -> int:
        return max(self.published(), self.model.ends.get(0, 0))

    def published(self) -> int:
        return int.from_bytes(self.files()["durable_end"], "little")

    def check_damage(self) -> None:
        """One byte of the log changed, on a copy of its files: refused, or without effect, never served."""
        files = self.files()
        wanted = self.raw_records()
        name = self.chance.choice(sorted(name for name in files if name != "owner.json"))
        damaged = bytearray(files[name])
        damaged[self.chance.randrange(len(damaged))] ^= 1 << self.chance.randrange(8)
        got, code = self.loop.until(self._read_damaged({**files, name: bytes(damaged)}))
        corruption_fails_closed(wanted, got, code, is_end=name == "durable_end")

    async def _read_damaged(self, files: Mapping[str, bytes]) -> tuple[list[Any] | None, str | None]:
        """What a reader of these files is given: every record, or the code of a refusal."""
        process = self.new_process("damaged")
        path = f"{DAMAGED}/log/0"
        process.files.make_directory(path)
        for name, content in files.items():
            process.files.write_atomic(f"{path}/{name}", content)
        log = self.open_log(process, DAMAGED)
        found: list[Any] = []
        try:
            while part := await log.read(0, len(found), bytes_max=5_000):
                found += [raw(entry.record) for entry in part]
        except AtomlogError as error:
            return None, error.code
        finally:
            await log.close()
            process.kill()
        return found, None


class KafkaCluster(Cluster):
    """Over the log on a real broker, below a topic of its own."""

    address = ""  # of the broker: host:port
    server: BrokerServer

    def make_log(self) -> None:
        self.server = BrokerServer(self.address, log_id=LOG_ID)

    def open_log(self, process: Process) -> Log:
        return BrokerLog(self.server, process, on_await=lambda point: self.on_await(process, point))

    def close(self) -> None:
        super().close()
        self.server.close()


async def _closed(node: Node) -> None:
    try:
        await node.owner.close()
        await node.log.close()
    except (AtomlogError, OSError):
        return
