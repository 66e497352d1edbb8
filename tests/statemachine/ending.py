"""How an example ends: faults are over, everybody gets an answer, and everything is checked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.owner import Owner
from atomlog.kernel.ports import LogRecord
from tests.statemachine import checkers
from tests.statemachine.checkers import UNKNOWN, WAITING
from tests.statemachine.world import INDEXES, PROCESSES, Index, Node

if TYPE_CHECKING:
    from tests.statemachine.machine import StoreMachine

PATIENCE_US = 20_000_000  # more than every time-out of the kernel
POSITIONS_COMPARED = 8
REPLAYED = 5  # of so many receipts, one is replayed


class Ending:
    def __init__(self, machine: "StoreMachine") -> None:
        self.machine = machine
        self.cluster = machine.c
        self.course = machine.course

    def check(self) -> None:
        self.machine.look()
        # 1. Peace: nothing fails any more, and one owner is left to answer.
        self.cluster.heal()
        self.cluster.restart_follower()
        self.cluster.loop.pass_time(PATIENCE_US)
        last = self.last_owner()
        # 2. Who was not told asks again, and hears it.
        self.tell_everybody(last)
        end = self.machine.look()
        # 3. What was told agrees with the log.
        self.check_writes()
        # 4. Heads and indexes are what a clean rebuild makes of it.
        self.check_records(last, end)
        for name in INDEXES:
            self.check_index(name, end)
        # 5. Reads that were begun end; receipts give what they gave: live, restarted, rebuilt.
        while self.machine.pagings:
            self.machine.read_on(0, 5)
        self.check_reads(end)
        self.check_receipts(end)
        self.cluster.check_damage()

    def last_owner(self) -> Node:
        checkers.everything_is_answered(self.machine.waiting())
        with checkers.named("everything_is_answered"):
            for slot in range(PROCESSES):
                self.cluster.stop(slot)
            assert self.cluster.start(0), f"no process can be started: {self.cluster.why}"
            node = self.cluster.node(0)
            assert node is not None
            claiming = self.cluster.loop.begin(node.owner.claim(), node.process)
            self.cluster.loop.pass_time(PATIENCE_US)
            assert claiming.done(), "the partition cannot be claimed"
            claiming.result()
        return node

    def tell_everybody(self, last: Node) -> None:
        unknown = [one for one in self.course.sent if one.state == UNKNOWN]
        before = len(self.course.sent)
        for one in unknown:
            asking = self.cluster.loop.begin(self.machine.ask(last.owner, *one.scope), last.process)
            self.cluster.loop.pass_time(50_000)
            assert asking.done(), "no outcome"
            self.machine.send(0, one.batch)
        self.cluster.loop.pass_time(PATIENCE_US)
        again = self.course.sent[before:]
        checkers.everything_is_answered([one for one in again if one.state in (UNKNOWN, WAITING)])

    def check_writes(self) -> None:
        for check in (
            checkers.single_chain_per_atom,
            checkers.acknowledged_exactly_once,
            checkers.no_half_batch,
            checkers.one_winner_per_head,
            checkers.same_key_same_answer,
            checkers.refusals_were_right,
            checkers.never_is_never,
            checkers.positions_are_monotone,
            checkers.every_batch_was_sent,
        ):
            check(self.course)

    def check_records(self, last: Node, end: int) -> None:
        """What every reader sees of the log, and the heads of who followed all of it."""
        cluster = self.cluster
        read: list[LogRecord] = []
        while part := cluster.loop.until(cluster.follower_log.read(0, len(read), bytes_max=700)):
            read += part
        cluster.loop.pass_time(100_000)
        place = last.owner.place()
        checkers.records_tile_the_log(
            self.course.model, end, [record.position for record in read], sum(place.voids.values())
        )
        clean = self.followed_anew(end)
        with checkers.named("digest_equals_clean_rebuild"):
            heads = last.owner._settled.kv
            pairs = [(key, value) for key, value in heads.scan(b"", b"\xff") if key[:1] != b"p"]
            again = [(key, value) for key, value in clean.scan(b"", b"\xff") if key[:1] != b"p"]
            assert pairs == again, "the heads are not what the log makes of new ones"

    def followed_anew(self, end: int) -> MemoryKv:
        kv = MemoryKv()
        process = self.cluster.new_process("heads")
        world = self.cluster.world(process, self.cluster.follower_log, kv)
        owner = Owner(world, 0)
        self.cluster.loop.until(owner.start())
        assert owner.applied == end
        self.cluster.loop.until(owner.close())
        return kv

    def check_index(self, name: str, end: int) -> None:
        cluster = self.cluster
        while cluster.indexes[name].checkpoint(0).position < end:
            before = cluster.indexes[name].checkpoint(0).position
            cluster.follow(name, 1_000)
            with checkers.named("resume_equals_uninterrupted"):
                assert cluster.indexes[name].checkpoint(0).position > before, f"{name} does not go on at {before}"
        live, clean = cluster.indexes[name], cluster.rebuilt(name, end)
        checkers.resume_equals_uninterrupted(self.answers(live, end), self.answers(clean, end))
        checkers.digest_equals_clean_rebuild(live, clean)

    def answers(self, index: Index, end: int) -> Mapping[str, Any]:
        """Questions of an index at some positions, and what it says."""
        model = self.course.model
        atoms = list(model.versions)
        groups = [atom for atom in atoms if model.versions[atom][0].schema == "collection"]
        found: dict[str, Any] = {"quarantined": list(index.quarantined())}
        for at in range(-1, end, 1 + end // POSITIONS_COMPARED):
            if index.name == "ids":
                found[f"heads at {at}"] = index.heads(atoms, {0: at})  # type: ignore[union-attr]
            elif index.name == "relations":
                for group in groups:
                    page = index.members(group, {0: at}, limit=99)  # type: ignore[call-arg, union-attr, arg-type]
                    found[f"members of {group.hex()} at {at}"] = page
            else:
                for group in groups:
                    bitmap = index.members(group, 0, at)  # type: ignore[call-arg, union-attr, arg-type]
                    ordinals = index.ordinals.atoms(0, list(bitmap))  # type: ignore[union-attr, arg-type]
                    found[f"members of {group.hex()} at {at}"] = sorted(ordinals)
        return found

    def check_reads(self, end: int) -> None:
        """Every group, and some atoms, now and halfway, in pages of three."""
        model = self.course.model
        atoms = list(model.versions)
        groups = [atom for atom in atoms if model.versions[atom][0].schema == "collection"]
        plain: dict[str, Any] = {"type": "members", "and": [], "or": [], "not": [], "include_retired": False}
        asked: list[dict[str, Any]] = [{"type": "relations", "target": atom, "role": None} for atom in atoms[:3]]
        for group, other in zip(groups, [*groups[1:], *groups[:1]], strict=True):
            every: list[dict[str, Any]] = [{}, {"include_retired": True}]
            every += [{name: [other]} for name in ("and", "not", "or")]
            asked += [{**plain, "group": group, **more} for more in every]
        asked += [{"type": "history", "atom": atom} for atom in atoms[:2]]
        for question in asked:
            for at in {end - 1, end // 2}:
                self.machine.begin_paging(question, limit=3, at={0: at})
        while self.machine.pagings:
            self.machine.read_on(0, 3)

    def check_receipts(self, end: int) -> None:
        receipts = range(len(self.machine.receipts))
        for number in receipts[::REPLAYED]:
            self.machine.replay_a_receipt(number)
        self.cluster.restart_reader()
        for number in receipts[-3:]:
            self.machine.replay_a_receipt(number)
        self.machine.rebuild("ids")
        for number in receipts[-3:]:
            self.machine.replay_a_receipt(number)
