"""What may happen to the network: slow, cut and stalled connections everywhere; and, where it is divided, partitions.

During a partition everybody but who is cut off must be answered; then it heals.
"""

import asyncio

from tests.chaos.cluster import KERNELS, OTHERS, Cluster
from tests.chaos.networks import Network
from tests.chaos.owner_faults import LEASE_S, drawn_partition


async def slow_the_network(cluster: Cluster) -> None:
    """Every chunk to and from the brokers takes 50 ms more each way."""
    for proxy in cluster.proxies:
        proxy.delay_s = 0.05
    try:
        await cluster.live("the network is slow")
    finally:
        for proxy in cluster.proxies:
            proxy.delay_s = 0.0


async def cut_the_network(cluster: Cluster) -> None:
    """Every connection to the brokers is reset, five times."""
    for _ in range(5):
        for proxy in cluster.proxies:
            proxy.cut()
        await asyncio.sleep(cluster.chance.random() * 0.5)


async def stall_the_network(cluster: Cluster) -> None:
    """Nothing gets through to the brokers for longer than every time-out; connections stand."""
    for proxy in cluster.proxies:
        proxy.stall()
    await asyncio.sleep(2 * LEASE_S)
    for proxy in cluster.proxies:
        proxy.flow()


async def part_the_owner_from_the_brokers(cluster: Cluster) -> None:
    """Clients and the other kernel still reach it."""
    owner = await cluster.owner(drawn_partition(cluster))
    for number in (1, 2, 3):
        _lose_broker(cluster, owner.name, number)
    await _heal_when_alive(cluster, f"{owner.name} reaches no broker")


async def part_a_broker_from_the_others(cluster: Cluster) -> None:
    """The one that leads a partition; clients and kernels still reach all three."""
    leader = cluster.brokers.leader(cluster.topic, drawn_partition(cluster))
    _lose_other_brokers(cluster, leader)
    await _heal_when_alive(cluster, f"broker {leader} reaches no broker")


async def part_the_owner_and_a_broker_from_the_rest(cluster: Cluster) -> None:
    """The owner and the broker that leads its partition reach each other and nobody else."""
    partition = drawn_partition(cluster)
    owner = await cluster.owner(partition)
    leader = cluster.brokers.leader(cluster.topic, partition)
    _lose_other_brokers(cluster, leader)
    for number in {1, 2, 3} - {leader}:
        _lose_broker(cluster, owner.name, number)
    for place in {*KERNELS, OTHERS} - {owner.name}:
        _lose_broker(cluster, place, leader)
        _network(cluster).lose(owner.name, cluster.host(place))
    await _heal_when_alive(cluster, f"{owner.name} and broker {leader} are on their own")


def _lose_other_brokers(cluster: Cluster, number: int) -> None:
    for other in {1, 2, 3} - {number}:
        _network(cluster).lose(f"b{number}", cluster.host(f"b{other}"))


def _lose_broker(cluster: Cluster, place: str, number: int) -> None:
    """A broker is reached through its proxy only."""
    _network(cluster).lose(place, cluster.outside, cluster.proxies[number - 1].port)


async def _heal_when_alive(cluster: Cluster, what: str) -> None:
    try:
        await asyncio.sleep(LEASE_S)
        await cluster.live(what)
    finally:
        _network(cluster).heal()


def _network(cluster: Cluster) -> Network:
    assert cluster.network is not None, "this fault needs a divided network"
    return cluster.network
