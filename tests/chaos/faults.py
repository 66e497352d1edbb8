"""What may happen to a cluster. Each fault is a coroutine that does it, and undoes it where that is part of it."""

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from tests.chaos.cluster import PARTITIONS, SETTINGS, Cluster

Fault = Callable[[Cluster], Awaitable[None]]
LEASE_S: Final = int(SETTINGS["ATOMLOG_LEASE_MS"]) / 1_000


def _partition(cluster: Cluster) -> int:
    return cluster.chance.randrange(PARTITIONS)


async def kill_the_owner(cluster: Cluster) -> None:
    """SIGKILL; started again at once."""
    owner = await cluster.owner(_partition(cluster))
    await owner.kill()
    await cluster.start_kernel(owner.name)


async def freeze_the_owner(cluster: Cluster) -> None:
    """SIGSTOP past every time-out, until another one owns the partition; then it goes on: a zombie."""
    partition = _partition(cluster)
    owner = await cluster.owner(partition)
    owner.freeze()
    others = [kernel for kernel in cluster.running.values() if kernel is not owner]
    await cluster.kernels.owner(partition, among=others)
    await asyncio.sleep(LEASE_S)
    owner.go_on()


async def end_the_owner(cluster: Cluster) -> None:
    """SIGTERM: it hands over; started again."""
    owner = await cluster.owner(_partition(cluster))
    assert await owner.terminate() == 0, f"see {cluster.folder}"
    await cluster.start_kernel(owner.name)


async def kill_the_leading_broker(cluster: Cluster) -> None:
    leader = cluster.brokers.leader(cluster.topic, _partition(cluster))
    await asyncio.to_thread(cluster.brokers.node(leader).kill)
    await cluster.live("one broker is gone")
    await asyncio.to_thread(cluster.brokers.restart, leader, 60.0)


async def freeze_a_broker(cluster: Cluster) -> None:
    """SIGSTOP of the one that leads a partition, until the others go on without it."""
    leader = cluster.brokers.leader(cluster.topic, _partition(cluster))
    node = cluster.brokers.node(leader)
    node.pause()
    try:
        await cluster.live("one broker stands still")
    finally:
        node.resume()


async def bounce_all_brokers(cluster: Cluster) -> None:
    """SIGKILL of all at once."""
    nodes = cluster.brokers.nodes
    for node in nodes:
        node.kill()
    await asyncio.to_thread(cluster.brokers.start_nodes, nodes, 90.0)


async def roll_a_disk_back(cluster: Cluster) -> None:
    """A broker comes back with an older image of its disk: it has forgotten what the others acknowledged with it."""
    number = cluster.chance.randint(1, 3)
    node = cluster.brokers.node(number)
    image = cluster.folder / f"image-{number}"
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.copy_disk, image)
    await asyncio.to_thread(cluster.brokers.restart, number, 60.0)
    await cluster.answers(40)
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.put_disk, image)
    await asyncio.to_thread(shutil.rmtree, image)
    await asyncio.to_thread(cluster.brokers.restart, number, 60.0)


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


async def freeze_a_consumer(cluster: Cluster) -> None:
    process = cluster.consumers[cluster.chance.choice(sorted(cluster.consumers))]
    process.send_signal(signal.SIGSTOP)
    await cluster.answers(40)
    process.send_signal(signal.SIGCONT)


async def kill_a_consumer(cluster: Cluster) -> None:
    name = cluster.chance.choice(sorted(cluster.consumers))
    await cluster.consumers[name].killed()
    await cluster.start_consumer(name)


async def delete_the_directory_of_an_index(cluster: Cluster) -> None:
    """The consumer is killed, what it derived is gone: it derives it again."""
    await cluster.consumers["ids"].killed()
    directory = await cluster.kernels.directory("replica-b")
    shutil.rmtree(Path(directory, "projections", "ids"))
    await cluster.start_consumer("ids")


async def lose_the_control_topic(cluster: Cluster) -> None:
    """`…control` alone is deleted: who owns a partition goes on."""
    before = {partition: (await cluster.owner(partition)).name for partition in range(PARTITIONS)}
    terms = {name: len(kernel.said("claimed")) for name, kernel in cluster.running.items()}
    arguments = ("--bootstrap-server", cluster.bootstrap, "--delete", "--topic", f"{cluster.prefix}.control")
    await asyncio.to_thread(cluster.brokers.tool, "org.apache.kafka.tools.TopicCommand", *arguments)
    await asyncio.sleep(2 * LEASE_S)
    await cluster.live("there are no reports")
    after = {partition: (await cluster.owner(partition)).name for partition in range(PARTITIONS)}
    assert (before, terms) == (after, {name: len(one.said("claimed")) for name, one in cluster.running.items()})
    made = ("--create", "--topic", f"{cluster.prefix}.control", "--partitions", "1", "--replication-factor", "3")
    await asyncio.to_thread(cluster.brokers.tool, "org.apache.kafka.tools.TopicCommand", *arguments[:2], *made)


FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        kill_the_owner,
        freeze_the_owner,
        end_the_owner,
        kill_the_leading_broker,
        freeze_a_broker,
        bounce_all_brokers,
        roll_a_disk_back,
        slow_the_network,
        cut_the_network,
        stall_the_network,
        freeze_a_consumer,
        kill_a_consumer,
        delete_the_directory_of_an_index,
        lose_the_control_topic,
    )
}
