"""A node that owns partitions: who asks it gets an answer, from here or from the owner; partitions go over in peace."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from tests.consumers.cluster.nodes import Cluster, Running
from tests.support.commands import until
from tests.support.kernel_world import batch, create


@asynccontextmanager
async def cluster(root: Path, *, partitions: int = 1) -> AsyncIterator[Cluster]:
    made = Cluster(root, partitions)
    try:
        yield made
    finally:
        await made.close()


async def error_of(work: Awaitable[Any]) -> AtomlogError:
    with pytest.raises(AtomlogError) as refused:
        await work
    return refused.value


async def two(made: Cluster) -> tuple[Running, Running]:
    """The owner, and a standby."""
    first, second = await made.node("one"), await made.node("two")
    owner = await made.owner()
    return owner, second if owner is first else first


async def test_a_write_that_reaches_a_standby_is_carried_out_by_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        await until(lambda: standby.node.keepers[0].owner.place().claim, "the standby knows the owner")
        there = await made.ask(standby, "write", batch=batch("k", create("a")))
        here = await made.ask(owner, "write", batch=batch("k", create("a")))
        assert (there["replayed"], here["replayed"]) == (False, True)
        assert there["receipt"] == here["receipt"]
        outcome = await made.ask(standby, "outcome", space="notes", key="k")
        assert outcome["outcome"] == "accepted"
        assert (await made.ask(standby, "outcome", space="notes", key="other"))["outcome"] == "never"


async def test_a_write_is_forwarded_once_and_then_refused_with_the_owners_endpoint(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        await until(lambda: standby.node.keepers[0].owner.place().claim, "the standby knows the owner")
        refused = await error_of(made.ask(standby, "write", forwarded=True, batch=batch("k", create("a"))))
        assert refused.code == "NOT_OWNER"
        assert refused.details[0]["endpoint"] == owner.endpoint
        assert refused.retry_after_ms is not None


async def test_when_the_owner_cannot_be_reached_a_standby_says_who_it_is(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        await until(lambda: standby.node.keepers[0].owner.place().claim, "the standby knows the owner")
        await owner.node._server.close()
        refused = await error_of(made.ask(standby, "write", batch=batch("k", create("a"))))
        assert refused.code == "NOT_OWNER"
        assert refused.details[0]["endpoint"] == owner.endpoint


async def test_a_refusal_of_the_owner_comes_through_a_standby_in_its_own_words(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        _, standby = await two(made)
        await until(lambda: standby.node.keepers[0].owner.place().claim, "the standby knows the owner")
        await made.ask(standby, "write", batch=batch("k", create("a")))
        refused = await error_of(made.ask(standby, "write", batch=batch("k", create("b"))))
        assert refused.code == "IDEMPOTENCY_MISMATCH"


async def test_a_node_that_ends_hands_over_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        for number in range(20):
            await made.ask(owner, "write", batch=batch(f"k{number}", create(f"a{number}")))
        await owner.end()
        assert owner.said("released")[0]["reason"] == f"the node {owner.node.name} is ending"
        await until(standby.owns, "the standby took over")
        assert not standby.said("owner_asked"), "it did not wait for silence"
        for number in range(20):
            again = await made.ask(standby, "write", batch=batch(f"k{number}", create(f"a{number}")))
            assert again["replayed"]


async def test_a_partition_is_moved_to_the_named_node_through_any_node_while_writes_go_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        third = await made.node("three")
        accepted: list[str] = []
        stop = asyncio.Event()

        async def insist(number: int) -> None:
            step = 0
            while not stop.is_set():
                key = f"w{number}-{step}"
                try:
                    await made.ask(third, "write", batch=batch(key, create(key)))
                except (AtomlogError, OSError) as error:
                    assert not isinstance(error, AtomlogError) or error.retry_after_ms is not None, error
                    await asyncio.sleep(0.01)
                    continue
                accepted.append(key)
                step += 1

        writers = [asyncio.create_task(insist(number)) for number in range(4)]
        await until(lambda: len(accepted) > 20, "writes go on")
        moved = await made.ask(standby, "move", partition=0, to=standby.node.name)
        assert moved.keys() == {"partition", "term", "node", "endpoint"}
        assert (moved["node"], moved["endpoint"]) == (standby.node.name, standby.endpoint)
        assert standby.owns()
        assert not owner.owns()
        many = len(accepted) + 20
        await until(lambda: len(accepted) > many, "writes go on")
        stop.set()
        await asyncio.gather(*writers)
        place = standby.node.keepers[0].owner.place()
        assert place.batches == len(accepted)
        assert place.checkpoint.state.term == moved["term"]


async def test_a_partition_stays_when_the_named_node_is_not_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner = await made.node("one")
        await made.owner()
        for to, code in (("nobody", "INVALID_INPUT"), ("tls:127.0.0.1:1", "NOT_OWNER")):
            assert (await error_of(made.ask(owner, "move", partition=0, to=to))).code == code
            assert owner.owns()
        assert (await made.ask(owner, "move", partition=0, to="one"))["node"] == "one"
        assert (await error_of(made.ask(owner, "move", partition=7, to="one"))).code == "INVALID_INPUT"


async def test_partitions_are_shared_by_who_is_meant_to_have_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=4) as made:
        one = await made.node("one", preferred={0, 1})
        two = await made.node("two", preferred={2, 3})
        for partition in range(4):
            owner = await made.owner(partition)
            assert owner is (one if partition < 2 else two)


async def test_no_two_nodes_have_one_directory(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await made.node("one")
        with pytest.raises(AtomlogError) as refused:
            await made.node("one")
        assert refused.value.code == "STORE_LOCKED"


async def test_a_probe_is_answered_for_the_very_claim_that_is_asked_about(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        claim = owner.node.keepers[0].owner.place().claim["owner"]
        assert (await made.ask(owner, "probe", partition=0, owner=claim))["serves"]
        assert not (await made.ask(owner, "probe", partition=0, owner="ab" * 16))["serves"]
        assert not (await made.ask(owner, "probe", partition=0, owner=""))["serves"]
        assert not (await made.ask(standby, "probe", partition=0, owner=claim))["serves"]
        assert (await error_of(made.ask(owner, "probe", partition=0, owner="tea"))).code == "INVALID_INPUT"
        assert (await error_of(made.ask(owner, "probe", partition="0", owner=claim))).code == "INVALID_INPUT"


@pytest.mark.parametrize(
    "sent",
    [
        {"op": "nothing"},
        {"op": "write", "batch": 1},
        {"op": "write", "batch": batch("k", create("a")), "receipts": ["x"]},
        {"op": "write", "batch": batch("k", create("a")), "receipts": 3},
        {"op": "write", "batch": batch("k", create("a")), "principal": 3},
        {"op": "outcome", "space": 1, "key": "k"},
        {"op": "move", "partition": 0, "to": 5},
        {"op": "fit", "partition": -1},
    ],
)
async def test_what_is_no_request_is_refused_by_name(tmp_path: Path, sent: dict[str, Any]) -> None:
    async with cluster(tmp_path) as made:
        owner = await made.node("one")
        await made.owner()
        op = sent.pop("op")
        assert (await error_of(made.ask(owner, op, **sent))).code == "INVALID_INPUT"


async def test_a_node_whose_disk_is_full_gives_its_partitions_back(tmp_path: Path, monkeypatch: Any) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        full = "less than the reserve"
        monkeypatch.setattr(owner.node, "_trouble", lambda: full)
        owner.node.keepers[0]._trouble = lambda: full
        await until(standby.owns, "the other one took over")
        assert owner.said("released")[0]["reason"] == full
        assert not standby.said("owner_asked")


async def test_a_node_whose_clock_is_off_gives_its_partitions_back_and_takes_none_until_it_is_right(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        off = {"ms": 0}
        owner = await made.node("one", off_ms=lambda: off["ms"])
        assert await made.owner() is owner
        standby = await made.node("two")
        off["ms"] = -61_000
        await until(standby.owns, "the other one took over")
        assert owner.said("released")[0]["reason"] == "the clock stands 61000 ms behind the brokers'; set it right"
        unfit = await owner.node.keepers[0].unfit()
        assert unfit is not None
        assert "61000 ms behind" in unfit
        off["ms"] = 0
        await standby.end()
        await until(owner.owns, "it owns again")


async def test_what_nodes_say_of_themselves_is_heard(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        owner, standby = await two(made)
        assert standby.node._control is not None
        reports = standby.node._control.reports

        def heard() -> bool:
            return any(
                part.phase == "owner" and one.report.name == owner.node.name
                for one in reports.heard()
                for part in one.report.partitions
            )

        await until(heard, "the owner's heartbeat arrived")
        assert reports.endpoint_of(owner.node.name) == owner.endpoint
