"""Who owns a partition of a shared log while nodes start, die, freeze, are cut off: never two, never nobody for long.

The law of the log lets one owner's records count whatever happens; here it is about who tries, and how often.
"""

import asyncio

import pytest

from atomlog.kernel.log.faults import ReadFault
from tests.simulation.elections import BACKOFF_S, LEASE_S, ElectingNode, World, electing, seconds

SEEDS = range(4)
TAKEOVER_S = LEASE_S + BACKOFF_S + 3.0  # one node's answer that does not come, a Claim and its keys
FIVE = [f"n{number}" for number in range(5)]


async def five(world: World) -> ElectingNode:
    """Five nodes that start at once, and the one that owns after a while."""
    for name in FIVE:
        world.node(name)
    await asyncio.sleep(10)
    (owner,) = world.owners()
    return owner


@pytest.mark.parametrize("seed", SEEDS)
def test_of_five_eager_nodes_that_start_at_once_one_owns_and_goes_on_owning(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        claims = world.claims()
        assert claims == [1]
        await asyncio.sleep(120)
        assert world.owners() == [owner]
        assert world.claims() == claims
        assert await owner.write("k") == "accepted"

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_owner_has_exactly_one_successor_within_lease_and_back_off(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        assert await owner.write("before") == "accepted"
        claims = len(world.claims())
        owner.kill()
        successor, took_s = await seconds(world.loop, world.an_owner(but=owner))
        assert took_s <= TAKEOVER_S
        await asyncio.sleep(60)
        assert world.owners() == [successor]
        assert len(world.claims()) <= claims + 2, "a duel"
        assert await successor.write("before") == "accepted"
        assert successor.owner.place().batches == 1, "what the first owner acknowledged is known"

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_that_was_frozen_past_the_lease_becomes_a_standby_and_there_is_no_duel(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        owner.stop()
        successor = await world.an_owner()
        claims = len(world.claims())
        await asyncio.sleep(3)
        owner.resume()
        await asyncio.sleep(1)
        assert owner.owner.phase == "standby"
        assert await owner.write("late") == "NOT_OWNER"
        await asyncio.sleep(90)
        assert world.owners() == [successor]
        assert len(world.claims()) == claims
        assert await successor.write("k") == "accepted"

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_standby_that_was_frozen_while_the_owner_was_well_does_not_claim_when_it_goes_on(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        world.control.is_broken = seed % 2 == 0
        others = [one for one in world.nodes.values() if one is not owner]
        for one in others:
            one.stop()
        await asyncio.sleep(40)
        for one in others:
            one.resume()
        await asyncio.sleep(30)
        assert world.owners() == [owner]
        assert len(world.claims()) == 1

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_while_the_control_topic_alone_is_away_a_healthy_owner_stays_although_nobody_writes(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        world.control.is_broken = True
        await asyncio.sleep(120)
        world.control.is_broken = False
        await asyncio.sleep(20)
        assert world.owners() == [owner]
        assert len(world.claims()) == 1
        assert [event["event"] for event in owner.events if event["event"].startswith("control_")].count(
            "control_failed"
        ) == 2, "said once for publishing and once for following, not each time"

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_whose_endpoint_alone_is_dead_stays_by_its_heartbeats_or_by_its_records(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        owner.endpoint_is_dead = True
        await asyncio.sleep(40)
        assert world.owners() == [owner]
        world.control.is_broken = True
        for number in range(30):
            assert await owner.write(f"k{number}") == "accepted"
            await asyncio.sleep(2)
        assert world.owners() == [owner]
        assert len(world.claims()) == 1
        successor, took_s = await seconds(world.loop, world.an_owner(but=owner))  # silent in every way, by now
        assert took_s <= TAKEOVER_S
        await asyncio.sleep(1)
        assert world.owners() == [successor]

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_when_nobody_can_hear_of_an_owner_in_any_way_it_changes_no_oftener_than_leases_end(seed: int) -> None:
    async def scenario(world: World) -> None:
        await five(world)
        world.control.is_broken = True
        for node in world.nodes.values():
            node.endpoint_is_dead = True
        before = len(world.claims())
        await asyncio.sleep(180)
        assert 0 < len(world.claims()) - before <= 180 / LEASE_S
        assert len(world.owners()) == 1
        world.control.is_broken = False
        await asyncio.sleep(LEASE_S)
        calm = len(world.claims())
        await asyncio.sleep(60)
        assert len(world.claims()) == calm, "heard of again, it stays"

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("off_s", [600, -600])
def test_a_clock_that_is_ten_minutes_off_has_no_effect_on_leases(seed: int, off_s: int) -> None:
    async def scenario(world: World) -> None:
        for number, name in enumerate(FIVE):
            world.node(name, clock_off_s=off_s if number == 0 else 0)
        await asyncio.sleep(60)
        assert len(world.owners()) == 1
        assert len(world.claims()) == 1

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_that_gives_a_partition_back_has_a_successor_far_sooner_than_the_lease(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        owner.trouble = "the disk is full"
        successor, took_s = await seconds(world.loop, world.an_owner(but=owner))
        assert took_s <= LEASE_S / 4
        owner.trouble = None
        await asyncio.sleep(60)
        assert world.owners() == [successor]
        assert len(world.claims()) == 2, "who gave it back does not take it again when it is well"

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_is_moved_goes_to_the_node_that_is_named(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        named = next(one for one in world.nodes.values() if one is not owner)
        keeper = owner.keeper
        assert keeper is not None
        assert await owner.process.ask(lambda: keeper.give_back(f"move to {named.endpoint}"))
        found, took_s = await seconds(world.loop, world.an_owner())
        assert found is named
        assert took_s <= 0.5
        await asyncio.sleep(60)
        assert world.owners() == [named]
        assert len(world.claims()) == 2

    electing(seed, scenario)


def test_a_partition_that_is_moved_to_a_dead_node_goes_to_another_one() -> None:
    async def scenario(world: World) -> None:
        owner = await five(world)
        named = next(one for one in world.nodes.values() if one is not owner)
        named.kill()
        keeper = owner.keeper
        assert keeper is not None
        assert await owner.process.ask(lambda: keeper.give_back(f"move to {named.endpoint}"))
        _, took_s = await seconds(world.loop, world.an_owner())
        assert took_s <= TAKEOVER_S

    electing(1, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_is_meant_for_a_node_goes_to_it_when_all_start_at_once(seed: int) -> None:
    async def scenario(world: World) -> None:
        for name in FIVE:
            world.node(name, preferred=name == "n3")
        await asyncio.sleep(20)
        assert [one.process.name for one in world.owners()] == ["n3"]
        assert len(world.claims()) == 1

    electing(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_standby_that_cannot_read_the_log_does_not_claim_until_it_has_listened_again(seed: int) -> None:
    async def scenario(world: World) -> None:
        owner = world.node("owner")
        await world.an_owner()
        world.node("other")
        await asyncio.sleep(3)
        world.server.script_reads(*[ReadFault.STALLS] * 100, reader="other")
        await asyncio.sleep(1)
        owner.kill()
        await asyncio.sleep(30)
        assert not world.owners()
        world.server.heal()
        world.server.let_go()
        other, took_s = await seconds(world.loop, world.an_owner())
        assert other.process.name == "other"
        assert LEASE_S <= took_s <= TAKEOVER_S

    electing(seed, scenario)


def test_a_node_that_is_alone_takes_over_after_its_own_crash() -> None:
    async def scenario(world: World) -> None:
        first = world.node("first")
        await world.an_owner()
        first.kill()
        world.node("first")
        again, took_s = await seconds(world.loop, world.an_owner(but=first))
        assert took_s <= TAKEOVER_S
        assert await again.write("k") == "accepted"

    electing(1, scenario)
