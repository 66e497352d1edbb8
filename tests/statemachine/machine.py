"""Everything that may happen to a store of several writers, as rules of a hypothesis state machine.

Each rule begins something or lets time go on; nothing is waited for but reads. What anybody was told is kept in the
`Course` and held against the log, as the oracles replay it, when the example ends.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.log.faults import Fault, ReadFault
from atomlog.kernel.model import LOCAL_PRINCIPAL
from atomlog.kernel.owner import Owner
from atomlog.kernel.requests import parse_write
from atomlog.projections.read.page import Page
from atomlog.projections.read.reader import ReadOptions
from tests.simulation.ports import Killed, Process
from tests.statemachine import checkers
from tests.statemachine.broker import HELD, REAL_FAULTS
from tests.statemachine.checkers import ACCEPTED, REFUSED, UNKNOWN, WAITING, Course, Sent
from tests.statemachine.ending import Ending
from tests.statemachine.questions import question, selector
from tests.statemachine.requests import Requests
from tests.statemachine.world import INDEXES, PROCESSES, Cluster, EmbeddedCluster, KafkaCluster, Node

slots = st.integers(0, PROCESSES - 1)
numbers = st.integers(0, 999)
NOT_KNOWN: Final = ("IN_DOUBT", "NOT_OWNER", "OVERLOADED", "KAFKA_UNAVAILABLE")
APPEND_FAULTS: Final = [fault for fault in Fault if fault is not Fault.NONE]
DISK_FAULTS: Final = ("EIO", "ENOSPC", "SHORT", "KILLED", "KILLED_AFTER", "POWER")


class Paging:
    """A read whose pages are fetched one by one, whatever happens between."""

    def __init__(self, asked: Mapping[str, Any], page: Page) -> None:
        self.asked = asked
        self.pages = [page]


class StoreMachine(RuleBasedStateMachine):
    """The rules of every log."""

    cluster_class: ClassVar[type[Cluster]] = Cluster
    seen: ClassVar[Counter[str]] = Counter()  # how often what was met, in all examples: nobody tests nothing

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Cluster | None = None
        self.keys = 0
        self.looked_until = 0
        self.asked_of: list[Process] = []
        self.pagings: list[Paging] = []
        self.receipts: list[tuple[bytes, bytes, Mapping[int, int]]] = []
        self.values: dict[bytes, Any] = {}

    @property
    def c(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.cluster = self.cluster_class(seed)
        self.course = Course(model=self.c.model)
        started = [self.c.start(slot) for slot in range(PROCESSES)]
        assert started == [True, not self.c.exclusive, not self.c.exclusive], self.c.why
        self.send(0, {"space": "notes", "idempotency_key": "first", "changes": FIRST})
        self.change_hands("claim", 0)
        self.c.loop.pass_time(100_000)

    # -- writers

    @rule(slot=slots, count=st.integers(1, 3), turns=st.sampled_from((0, 5, 40)), data=st.data())
    def write(self, slot: int, count: int, turns: int, data: st.DataObject) -> None:
        """Batches decided on what the log says now, sent at once to one process."""
        for batch in self.batches(data, count):
            self.send(slot, batch)
        self.c.loop.turns(turns)

    @rule(count=st.integers(1, 4), data=st.data())
    def write_to_the_owner(self, count: int, data: st.DataObject) -> None:
        """The same to who owns the partition, or to who is told to; and time for an answer."""
        slot = next((n for n in range(PROCESSES) if (node := self.c.node(n)) and node.owner.phase == "owner"), 0)
        if self.c.node(slot) is None:
            self.c.start(slot)
        self.change_hands("claim", slot)
        for _ in range(count):
            for batch in self.batches(data, 1):
                self.send(slot, batch)
            self.c.loop.pass_time(20_000)

    @rule(slot=slots, other=slots, data=st.data())
    def two_writers_of_one_head(self, slot: int, other: int, data: st.DataObject) -> None:
        heads = self.course.model.heads({0: self.look() - 1})
        sources = [head for head in heads if head.schema == "source" and head.space == "notes"]
        if sources:
            head = data.draw(st.sampled_from(range(len(sources))))
            for who in (slot, other):
                self.keys += 1
                change = {
                    "op": "revise",
                    "atom": format_id(sources[head].atom),
                    "expected": format_id(sources[head].revision),
                    "value": {"text": f"text of k{self.keys}"},
                }
                self.send(who, {"space": "notes", "idempotency_key": f"k{self.keys}", "changes": [change]})

    @precondition(lambda self: self.course.sent)
    @rule(slot=slots, number=numbers, other_body=st.booleans())
    def send_again(self, slot: int, number: int, other_body: bool) -> None:
        """The same key again, with the same body or with another one."""
        batch = self.course.sent[-1 - number % len(self.course.sent)].batch
        if other_body:
            change = {"op": "create", "schema": "source", "value": {"text": f"other body {len(self.course.sent)}"}}
            batch = {**batch, "changes": [change]}
        self.send(slot, batch)

    @precondition(lambda self: self.course.sent)
    @rule(slot=slots, number=numbers)
    def ask_for_the_outcome(self, slot: int, number: int) -> None:
        node = self.c.node(slot)
        if node is not None:
            space, key = self.course.sent[-1 - number % len(self.course.sent)].scope
            self.c.loop.begin(self.ask(node.owner, space, key), node.process)

    @rule(what=st.sampled_from(("claim", "claim", "release")), slot=slots)
    def change_hands(self, what: str, slot: int) -> None:
        """Take over, whoever is the owner; or give the partition back."""
        node = self.c.node(slot)
        if node is not None and node.is_usable:
            work = node.owner.claim() if what == "claim" else node.owner.release("asked")
            self.c.loop.begin(quietly(work), node.process)

    @rule(turns=st.sampled_from((1, 3, 10, 30, 100, 0)), ms=st.sampled_from((0, 0, 1, 5, 50, 2_500)))
    def go_on(self, turns: int, ms: int) -> None:
        """Some of what is ready, or everything that happens in some time."""
        self.c.loop.turns(turns)
        self.c.loop.pass_time(ms * 1_000)

    # -- processes

    @rule(slot=slots, count=st.integers(0, 25))
    def kill_at_an_await(self, slot: int, count: int) -> None:
        """At once, or whoever calls a port after so many calls more."""
        if count:
            self.c.calls.faults[self.c.calls.count + count] = "KILLED" if count % 2 else "KILLED_AFTER"
            self.c.loop.turns(count)
        else:
            self.c.kill(slot)

    @rule(slot=slots, keep_heads=st.booleans())
    def restart(self, slot: int, keep_heads: bool) -> None:
        """With the heads as far as they were written, or with none."""
        node = self.c.node(slot)
        if node is None or not node.is_usable:
            self.c.kill(slot)
            self.c.start(slot, keep_heads=keep_heads)

    # -- indexes

    @rule(names=st.sampled_from((INDEXES, INDEXES, *((name,) for name in INDEXES))), count=st.integers(1, 20))
    def follow(self, names: Sequence[str], count: int) -> None:
        self.look()
        for name in names:
            self.c.follow(name, count)
            checkers.stands(self.course, name, self.c.indexes[name].checkpoint(0).position)

    @rule(what=st.sampled_from(("open again", "rebuild", "reader")), name=st.sampled_from(INDEXES))
    def begin_anew(self, what: str, name: str) -> None:
        if what == "open again":
            self.c.open_index(name)
            checkers.stands(self.course, name, self.c.indexes[name].checkpoint(0).position)
        elif what == "reader":
            self.c.restart_reader()
        else:
            self.rebuild(name)

    @rule(name=st.sampled_from(INDEXES), writes=st.integers(0, 1), count=st.integers(1, 20))
    def an_index_cannot_be_written(self, name: str, writes: int, count: int) -> None:
        """Its store takes so many writes more, and then none until it is opened anew."""
        self.look()
        self.c.fail_writes(name, writes)
        self.c.follow(name, count)
        self.c.open_index(name)
        checkers.stands(self.course, name, self.c.indexes[name].checkpoint(0).position)

    # -- reads

    @rule(count=st.integers(1, 4), limit=st.integers(1, 9), more=st.integers(0, 20), data=st.data())
    def begin_to_read(self, count: int, limit: int, more: int, data: st.DataObject) -> None:
        """What is newest in either mode, or what was at a position of the past; the first page of it."""
        self.follow(INDEXES, more)
        for _ in range(count):
            mode = data.draw(st.sampled_from(("snapshot", "version_pinned", "past", "past")))
            applied = min(index.checkpoint(0).position for index in self.c.indexes.values()) - 1
            options: dict[str, Any] = {"consistency": None if mode == "past" else mode}
            if mode == "past":
                options["at"] = {0: data.draw(st.integers(-1, max(applied, -1)))}
            asked = question(self.course.model, data)
            self.begin_paging(asked, limit=limit, **options)

    @precondition(lambda self: self.pagings)
    @rule(number=numbers, limit=st.integers(1, 9))
    def read_on(self, number: int, limit: int) -> None:
        """The next page of a read, as of the state of its first one."""
        paging = self.pagings[number % len(self.pagings)]
        continuation = paging.pages[-1].continuation
        assert continuation is not None
        page = self.read(paging.asked, limit=limit, continuation=continuation)
        if page is not None:
            paging.pages.append(page)
            self.took(paging)

    @precondition(lambda self: self.receipts)
    @rule(number=numbers)
    def replay_a_receipt(self, number: int) -> None:
        receipt, body, positions = self.receipts[number % len(self.receipts)]
        with self.undisturbed(), checkers.named("receipts_replay_to_the_same_bytes"):
            again = self.c.loop.until(self.c.reader.replay(receipt))
        checkers.receipts_replay_to_the_same_bytes(body, positions, again)

    # -- the end of an example

    def teardown(self) -> None:
        if self.cluster is None:
            return
        try:
            Ending(self).check()
            self.count()
        finally:
            self.c.close()

    def count(self) -> None:
        model = self.course.model
        self.seen.update(
            {
                "examples": 1,
                "batches": len(model.batches),
                "void records": sum(model.voids.values()),
                "receipts": len(self.receipts),
                "told as never": len(self.course.never),
                "repeated": sum(one.result.replayed for one in self.course.accepted()),
                "claims": sum(kind == "Claim" for _, kind in model.effective.get(0, [])),
                "disk faults": len(self.c.calls.met),
            }
        )
        self.seen.update(one.code or one.state for one in self.course.sent)

    # -- how

    def batches(self, data: st.DataObject, count: int) -> Iterator[dict[str, Any]]:
        def draw(below: int) -> int:
            return data.draw(st.integers(0, below - 1)) if below > 1 else 0

        for _ in range(count):
            self.look()
            self.keys += 1
            yield Requests(self.course.model, draw).batch(f"k{self.keys}")

    def rebuild(self, name: str) -> None:
        """A new index, applied at once, takes the place of one that followed."""
        old = self.c.indexes[name].checkpoint(0).position
        if old > self.c.published():
            return  # after a power cut, until an owner has looked
        with self.undisturbed():
            self.c.open_index(name, new=True)
            self.c.builds[name] += 1
            self.c.indexes[name] = self.c.rebuilt(name, old, self.c.kvs[name])

    def send(self, slot: int, batch: Mapping[str, Any]) -> None:
        node = self.c.node(slot)
        if node is not None:
            one = Sent(number=len(self.course.sent), batch=batch, asked_at=self.look())
            self.course.sent.append(one)
            self.asked_of.append(node.process)
            self.c.loop.begin(self.sending(one, node), node.process)

    async def sending(self, one: Sent, node: Node) -> None:
        try:
            result = await node.owner.write(parse_write(one.batch), LOCAL_PRINCIPAL)
        except AtomlogError as error:
            is_failure = error.code == "CORRUPT" and any("EIO" in met for met in self.c.calls.met)
            one.state = UNKNOWN if error.code in NOT_KNOWN or is_failure else REFUSED
            one.code, one.why, one.details = error.code, error.message, error.details
        else:
            one.state, one.result = ACCEPTED, result
            for change, made in zip(one.batch["changes"], result.results, strict=True):
                self.values[made.revision] = change.get("value")
        one.answered_at = self.c.end()
        one.answer_number = len(self.course.sent)

    async def ask(self, owner: Owner, space: str, key: str) -> None:
        """`never` counts where all that was sent before the question had been answered, or had lost its process."""
        asked = len(self.course.sent)
        waiting = [one for one in self.waiting() if one.scope == (space, key)]
        try:
            outcome = await owner.outcome(space, key, LOCAL_PRINCIPAL)
        except AtomlogError:
            return
        if (
            outcome.state == "never"
            and not waiting
            and not any(one.scope == (space, key) for one in self.course.sent[asked:])
        ):
            self.course.never[space, key] = len(self.course.sent)

    def look(self) -> int:
        """The log's end; what is new before it is replayed, and must fit at once: indexes stop where it does not."""
        end = self.c.look()
        if end > self.looked_until:
            checkers.single_chain_per_atom(self.course)
            self.looked_until = end
        return end

    def waiting(self) -> list[Sent]:
        """Who is owed an answer. Of a process that is gone nobody gets one: what became of it is not known."""
        for one, process in zip(self.course.sent, self.asked_of, strict=True):
            if one.state == WAITING and process.is_dead:
                one.state = UNKNOWN
        return [one for one in self.course.sent if one.state == WAITING]

    def read(self, asked: Mapping[str, Any], **options: Any) -> Page | None:
        """A page; None where the log failed the read, or where nothing is there and that is right."""
        self.c.restart_follower()
        faults = len(self.c.calls.met)
        try:
            with checkers.named("reads_are_exact"):
                return self.c.loop.until(self.c.reader.read(selector(asked), ReadOptions(**options)))
        except (checkers.CheckFailed, Killed) as error:
            cause = error.__cause__
            if len(self.c.calls.met) > faults:
                self.c.restart_follower()
                return None
            if isinstance(cause, AtomlogError) and cause.code == "OVERLOADED" and self.c.published() < self.look():
                return None  # after a power cut, until an owner has looked
            if isinstance(cause, AtomlogError) and cause.code == "NOT_FOUND":
                at = options["at"] if options.get("at") else {0: self.c.indexes["ids"].checkpoint(0).position - 1}
                self.absent(asked, at)
                return None
            raise

    def absent(self, asked: Mapping[str, Any], at: Mapping[int, int]) -> None:
        """NOT_FOUND is for one atom that was not there at the lowest position that any index had."""
        lowest = {0: min(at[0], *(index.checkpoint(0).position - 1 for index in self.c.indexes.values()))}
        with checkers.named("reads_are_exact"):
            assert asked["type"] == "history" or len(asked.get("ids", ())) == 1, f"{asked}: NOT_FOUND"
            assert not checkers.expected_rows(self.course.model, asked, lowest), f"{asked} at {at}: NOT_FOUND"

    def begin_paging(self, asked: Mapping[str, Any], **options: Any) -> None:
        page = self.read(asked, **options)
        if page is not None:
            self.pagings.append(Paging(asked, page))
            self.took(self.pagings[-1])

    def took(self, paging: Paging) -> None:
        """A page was read: its receipt is kept; all pages are checked when the last one is there."""
        page = paging.pages[-1]
        self.receipts.append((page.receipt.receipt, page.body(), page.receipt.observed()))
        if page.continuation is None:
            if paging in self.pagings:
                self.pagings.remove(paging)
            model = self.course.model
            checkers.pages_are_the_whole_once(model, paging.asked, paging.pages)
            checkers.reads_are_exact(model, paging.asked, paging.pages, self.values)

    def undisturbed(self) -> "Undisturbed":
        return Undisturbed(self.c)


class Undisturbed:
    """No fault meets what is done inside; it waits for the next call after it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __enter__(self) -> None:
        self.cluster.restart_follower()
        calls = self.cluster.calls
        self.faults, self.named = dict(calls.faults), list(calls.named)
        calls.faults.clear()
        calls.named.clear()

    def __exit__(self, *_: object) -> None:
        self.cluster.calls.faults.update(
            {n + self.cluster.calls.count: f for n, f in enumerate(self.faults.values(), 1)}
        )


class SharedLogMachine(StoreMachine):
    """Anybody may append; what becomes of an append is scripted."""

    @rule(fault=st.sampled_from([ReadFault.ERROR, ReadFault.STALLS]), slot=slots)
    def a_read_of_an_owner_fails(self, fault: ReadFault, slot: int) -> None:
        node = self.c.node(slot)
        if node is not None:
            self.c.server.script_reads(fault, reader=node.name)

    def script(self, fault: Fault, slot: int | None) -> None:
        node = None if slot is None else self.c.node(slot)
        self.c.server.script(fault, **({} if node is None else {"producer": node.name}))

    @precondition(lambda self: self.c.server.in_flight)
    @rule(number=numbers, arrives=st.booleans())
    def what_was_delayed_arrives_or_is_lost(self, number: int, arrives: bool) -> None:
        in_flight = self.c.server.in_flight
        request = in_flight[number % len(in_flight)].number
        (self.c.server.deliver if arrives else self.c.server.drop)(request)

    @rule()
    def stalled_calls_go_on(self) -> None:
        self.c.server.let_go()


class MemoryLogMachine(SharedLogMachine):
    @rule(fault=st.sampled_from(APPEND_FAULTS), slot=st.none() | slots)
    def an_append_fails(self, fault: Fault, slot: int | None) -> None:
        """The next append of a process, or of whoever is next."""
        self.script(fault, slot)


class KafkaLogMachine(SharedLogMachine):
    """On a real broker, which does what it is asked; on the way there connections, requests and answers are lost."""

    cluster_class = KafkaCluster

    @rule(fault=st.sampled_from(REAL_FAULTS), slot=st.none() | slots)
    def an_append_fails(self, fault: Fault, slot: int | None) -> None:
        """The next append of a process, or of whoever is next."""
        self.script(fault, slot)

    @rule(other=slots, fault=st.sampled_from(HELD), ms=st.sampled_from((1, 50, 2_500)), data=st.data())
    def another_one_claims_while_a_request_is_on_its_way(
        self, other: int, fault: Fault, ms: int, data: st.DataObject
    ) -> None:
        """It arrives, is lost or stays where it is; who sent it may be alive, or wait for it still."""
        slot = next((n for n in range(PROCESSES) if (node := self.c.node(n)) and node.owner.phase == "owner"), other)
        self.script(fault, slot)
        for batch in self.batches(data, 1):
            self.send(slot, batch)
        self.c.loop.pass_time(20_000)
        self.change_hands("claim", other)
        self.c.loop.pass_time(ms * 1_000)


class EmbeddedLogMachine(StoreMachine):
    """One process holds the lock; the disk fails."""

    cluster_class = EmbeddedCluster

    @rule(fault=st.sampled_from(DISK_FAULTS), calls=st.integers(1, 40))
    def a_call_of_the_disk_fails(self, fault: str, calls: int) -> None:
        self.c.calls.faults[self.c.calls.count + calls] = fault

    @rule(fault=st.sampled_from(DISK_FAULTS), call=st.sampled_from((" sync ", " append ", "durable_end", " truncate ")))
    def a_call_of_the_log_fails(self, fault: str, call: str) -> None:
        """The next one of its kind."""
        self.c.calls.named.append((call, fault))

    @rule()
    def the_power_is_cut(self) -> None:
        self.c.machine.cut_power()
        self.c.restart_follower()

    @rule(slot=slots)
    def close(self, slot: int) -> None:
        """Give the partition back in an orderly way, so that another process may have it."""
        self.c.stop(slot)


async def quietly(work: Any) -> None:
    """Whatever becomes of it is told in other ways."""
    try:
        await work
    except (AtomlogError, OSError):
        return


FIRST: Final = [
    {"op": "create", "as": "@g", "key": "green", "schema": "collection", "value": {"title": "green"}},
    {"op": "create", "as": "@a", "key": "tea", "schema": "source", "value": {"text": "text of first"}},
    {
        "op": "create",
        "schema": "membership",
        "value": {},
        "slots": [{"role": "group", "target": "@g"}, {"role": "member", "target": "@a", "order_key": "a"}],
    },
]
