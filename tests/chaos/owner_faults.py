"""What may happen to the kernels. Each fault does it, and undoes it where that is part of it."""

import asyncio
from typing import Final

from tests.chaos.cluster import PARTITIONS, SETTINGS, Cluster
from tests.chaos.sockets import addresses_of
from tests.cluster.kernels import Kernel
from tests.support.commands import until

LEASE_S: Final = int(SETTINGS["ATOMLOG_LEASE_MS"]) / 1_000
CLOCK_OFF_S: Final = 600


async def kill_the_owner(cluster: Cluster) -> None:
    """SIGKILL; started again at once."""
    owner = await cluster.owner(drawn_partition(cluster))
    await owner.kill()
    await cluster.start_kernel(owner.name)


async def end_the_owner(cluster: Cluster) -> None:
    """SIGTERM: it hands over; started again."""
    owner = await cluster.owner(drawn_partition(cluster))
    assert await owner.terminate() == 0, f"see {cluster.folder}"
    await cluster.start_kernel(owner.name)


async def freeze_the_owner(cluster: Cluster) -> None:
    """SIGSTOP past every time-out, until another one owns the partition; then it goes on: a zombie."""
    partition = drawn_partition(cluster)
    owner = await cluster.owner(partition)
    owner.freeze()
    await cluster.kernels.owner(partition, among=others_than(cluster, owner))
    await asyncio.sleep(LEASE_S)
    owner.go_on()


async def freeze_the_owner_in_mid_append(cluster: Cluster) -> None:
    """What the owner appends is held back and it is frozen; when another one owns, that arrives.

    A record of an older term: it is void.
    """
    partition = drawn_partition(cluster)
    owner = await cluster.owner(partition)
    connections = addresses_of(owner.process.pid)
    topic = cluster.topic.encode()
    for proxy in cluster.proxies:
        proxy.hold(lambda sender, chunk: sender in connections and _produces(chunk) and topic in chunk)
    try:
        await until(lambda: sum(proxy.held for proxy in cluster.proxies), f"{owner.name} appends")
        owner.freeze()
        await cluster.kernels.owner(partition, among=others_than(cluster, owner))
    finally:
        for proxy in cluster.proxies:
            proxy.release()
        owner.go_on()


async def put_a_clock_off(cluster: Cluster) -> None:
    """The owner's clock jumps by ten minutes: it gives back what it has, until its clock is right again."""
    partition = drawn_partition(cluster)
    owner = await cluster.owner(partition)
    cluster.clocks[owner.name].put_off(cluster.chance.choice((CLOCK_OFF_S, -CLOCK_OFF_S)))
    try:
        await cluster.kernels.owner(partition, among=others_than(cluster, owner))
        await cluster.live(f"the clock of {owner.name} is off")
    finally:
        cluster.clocks[owner.name].put_off(0)
    await asyncio.sleep(LEASE_S)  # by then it has compared its clock again


async def starve_the_followers_of_keys(cluster: Cluster) -> None:
    """A standby and a consumer hear nothing of the key topic while keys are made; then the owner is killed."""
    owner = await cluster.owner(drawn_partition(cluster))
    starved = [kernel.process.pid for kernel in others_than(cluster, owner)]
    starved.append(cluster.consumers["left"].pid)
    topic = f"{cluster.prefix}.keys".encode()
    for proxy in cluster.proxies:
        proxy.hold(lambda sender, chunk: topic in chunk and any(sender in addresses_of(pid) for pid in starved))
    try:
        await until(lambda: sum(proxy.held for proxy in cluster.proxies), "a follower of keys hears nothing")
        await cluster.answers(40)
        await owner.kill()
        await asyncio.sleep(2 * LEASE_S)
    finally:
        for proxy in cluster.proxies:
            proxy.release()
    await cluster.start_kernel(owner.name)


def _produces(chunk: bytes) -> bool:
    """Whether it begins with a request that produces: its length, then the number of the operation, 0."""
    return chunk[4:6] == bytes(2)


def drawn_partition(cluster: Cluster) -> int:
    return cluster.chance.randrange(PARTITIONS)


def others_than(cluster: Cluster, owner: Kernel) -> list[Kernel]:
    return [kernel for kernel in cluster.running.values() if kernel is not owner]
