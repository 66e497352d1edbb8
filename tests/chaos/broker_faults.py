"""What may happen to the brokers, and to the topic of reports."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.chaos.cluster import PARTITIONS, Cluster
from tests.chaos.owner_faults import LEASE_S, drawn_partition

START_S: Final = 120.0  # a broker has as long to start; it only ends a run that has failed


async def kill_the_leading_broker(cluster: Cluster) -> None:
    """SIGKILL of the one that leads a partition, again and again."""
    for _ in range(cluster.kills):
        leader = cluster.brokers.leader(cluster.topic, drawn_partition(cluster))
        await asyncio.to_thread(cluster.brokers.node(leader).kill)
        await cluster.live("one broker is gone")
        await asyncio.to_thread(cluster.brokers.restart, leader, START_S)


async def freeze_a_broker(cluster: Cluster) -> None:
    """SIGSTOP of the one that leads a partition, until the others go on without it."""
    leader = cluster.brokers.leader(cluster.topic, drawn_partition(cluster))
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
    await asyncio.to_thread(cluster.brokers.start_nodes, nodes, START_S)


async def leave_one_broker(cluster: Cluster) -> None:
    """SIGKILL of two: the one that is left acknowledges nothing, until they are back."""
    left = cluster.chance.choice(cluster.brokers.nodes)
    others = [node for node in cluster.brokers.nodes if node is not left]
    for node in others:
        node.kill()
    await asyncio.sleep(LEASE_S)  # what they had acknowledged is told
    before = cluster.written()
    await asyncio.sleep(LEASE_S)
    assert cluster.written() == before, "one broker alone has acknowledged something"
    await asyncio.to_thread(cluster.brokers.start_nodes, others, START_S)


async def roll_a_disk_back(cluster: Cluster) -> None:
    """A broker comes back with an older image of its disk: it has forgotten what the others acknowledged with it."""
    number = cluster.chance.randint(1, 3)
    node = cluster.brokers.node(number)
    image = cluster.folder / f"image-{number}"
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.copy_disk, image)
    await asyncio.to_thread(cluster.brokers.restart, number, START_S)
    await cluster.answers(40)
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.put_disk, image)
    await asyncio.to_thread(shutil.rmtree, image)
    await asyncio.to_thread(cluster.brokers.restart, number, START_S)


async def lose_the_control_topic(cluster: Cluster) -> None:
    """`…control` alone is deleted: who owns a partition goes on. It is made again."""
    before = {partition: (await cluster.owner(partition)).name for partition in range(PARTITIONS)}
    terms = {name: len(kernel.said("claimed")) for name, kernel in cluster.running.items()}
    topic = f"{cluster.prefix}.control"
    async with _admin(cluster) as admin:
        await admin.delete_topics([topic])
    await asyncio.sleep(2 * LEASE_S)
    await cluster.live("there are no reports")
    after = {partition: (await cluster.owner(partition)).name for partition in range(PARTITIONS)}
    assert (before, terms) == (after, {name: len(one.said("claimed")) for name, one in cluster.running.items()})
    async with _admin(cluster) as admin:
        await admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=3)])


@asynccontextmanager
async def _admin(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
