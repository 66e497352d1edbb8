"""`atomlog kernel` and `atomlog move owner`: a process that owns partitions of a shared store, and a word with it."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from atomlog.consumers.assignment import check_assignment
from atomlog.consumers.cluster.inbox.node import inboxes_of
from atomlog.consumers.cluster.kafka_control import KafkaControl
from atomlog.consumers.cluster.kernel_metrics import KernelMetrics
from atomlog.consumers.cluster.listening import Listening, checked_name, listening
from atomlog.consumers.cluster.node import KernelNode
from atomlog.consumers.cluster.shared import Shared
from atomlog.consumers.ending import Ending
from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.machine import Machine
from atomlog.consumers.parts import Parts, open_parts
from atomlog.consumers.store_config import StoreConfig
from atomlog.consumers.waiting import first_of
from atomlog.kernel.brokers_clock import BrokersClock
from atomlog.kernel.errors import AtomlogError, FatalError, fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.kafka.topics import parse_allow_weak
from atomlog.kernel.settings import Settings


async def run_kernel(
    directory: str,
    *,
    listen: str,
    advertise: str | None = None,
    name: str | None = None,
    partitions: str | Sequence[int] | None = None,
    metrics_address: str | None = None,
    allow_weak: Collection[str] = (),
    settings: Settings | None = None,
    master_key_file: str | None = None,
    machine: Machine | None = None,
    on_event: OnEvent = log_event,
    stop: asyncio.Event | None = None,
) -> int:
    """Own partitions of the shared store of this node until SIGTERM, SIGINT or `stop`; the exit code for that.

    `listen` is HOST:PORT (port 0 = a free one) for the other nodes, `advertise` the host that they are told, where it
    is another one. `partitions`: those that are meant for this node, `all` or None = every one; the others it takes
    when nobody else does. `name`: for people; None = where it listens.

    Raises:
        STORE_NOT_FOUND, INVALID_INPUT, STORE_LOCKED naming the process that owns from this directory.
        KEY_UNAVAILABLE: there is no master key. KAFKA_UNAVAILABLE, ACCESS_DENIED, STORE_UNSAFE, LOG_MISMATCH.
        LOG_DIVERGED, UPGRADE_REQUIRED, CORRUPT: no partition can be followed any more.
    """
    machine, settings = machine or Machine(), settings or Settings()
    where = listening(listen, advertise)
    name = None if name is None else checked_name(name)
    config = _shared_config(machine, directory)
    preferred = None if partitions is None else check_assignment(partitions, config.partitions, "partitions")
    ending = Ending(stop)
    metrics = None if metrics_address is None else KernelMetrics(metrics_address)
    if metrics is not None:
        on_event = metrics.listening(on_event)
    async with AsyncExitStack() as closing:
        closing.callback(ending.listen())
        parts = open_parts(
            directory,
            config,
            settings=settings,
            master_key_file=master_key_file,
            machine=machine,
            on_event=on_event,
            meters=None if metrics is None else metrics.meters,
            allow_weak=parse_allow_weak(allow_weak, machine.environment),
        )
        closing.push_async_callback(parts.close)
        assert parts.shared is not None
        opening = asyncio.ensure_future(_open(parts, parts.shared, where, name, preferred))
        await first_of(ending.event.wait(), _done(opening))
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return ending.code
        node = opening.result()
        closing.push_async_callback(node.close)
        if metrics is not None:
            closing.push_async_callback(metrics.close)
            await metrics.start(parts, node)
        on_event(_keeping(node, preferred))
        await _serve(parts, parts.shared, node, ending)
        on_event({"event": "stopping", "endpoint": node.endpoint})
        return ending.code


async def move_owner(
    directory: str,
    partition: int,
    *,
    to: str | None = None,
    settings: Settings | None = None,
    machine: Machine | None = None,
    on_event: OnEvent = log_event,
) -> Mapping[str, Any]:
    """Hand a partition over, to the node of this name or endpoint, or to any other one; who has it then.

    Raises:
        NOT_OWNER: nobody owns the partition, or that node could not take it. INVALID_INPUT: no such node or partition.
        IN_DOUBT: it was given back, perhaps, and it is not known who has it.
    """
    machine, settings = machine or Machine(), settings or Settings()
    config = _shared_config(machine, directory)
    if not 0 <= partition < config.partitions:
        raise invalid("partition", f"{partition} is none; the store has {config.partitions}, from 0")
    async with AsyncExitStack() as closing:
        parts = open_parts(
            directory, config, settings=settings, machine=machine, read_only=True, follow_keys=False, on_event=on_event
        )
        closing.push_async_callback(parts.close)
        await parts.start()
        assert parts.shared is not None
        owners, connections = parts.shared.owners(), parts.shared.connections()
        closing.push_async_callback(owners.close)
        closing.push_async_callback(connections.close)
        endpoint = await owners.endpoint(partition)
        if endpoint is None:
            raise fail("NOT_OWNER", f"no node says that it owns partition {partition}", retry_after_ms=1_000)
        try:
            timeout_s = settings.node_call_timeout_ms / 1_000
            found: Mapping[str, Any] = await connections.ask(endpoint, "move", timeout_s, partition=partition, to=to)
        except (ConnectionError, TimeoutError) as error:
            raise fail("IN_DOUBT", f"{endpoint} did not answer: {error}; ask for the status") from None
        return found


async def _open(
    parts: Parts,
    shared: Shared,
    where: Listening,
    name: str | None,
    preferred: Collection[int] | None,
) -> KernelNode:
    parts.ring.require_master()
    credentials = shared.credentials()
    await parts.start()
    brokers_clock = BrokersClock(parts.machine.clock)
    return await KernelNode.open(
        parts,
        host=where.host,
        port=where.port,
        advertised_host=where.advertised_host,
        credentials=credentials,
        topic=KafkaControl(shared.client, shared.names.control, brokers_clock),
        name=name,
        preferred=preferred,
        off_ms=brokers_clock.off_ms,
    )


async def _serve(parts: Parts, shared: Shared, node: KernelNode, ending: Ending) -> None:
    """The partitions, inboxes, receipts of other nodes, a look at the topics now and then, until one has to end."""
    beside = [
        asyncio.create_task(inboxes_of(node, parts, shared.client, shared.names.prefix).run()),
        asyncio.create_task(_check(parts, shared)),
    ]
    if parts.receipts is not None:
        beside.append(asyncio.create_task(parts.receipts.follow()))
    try:
        await first_of(node.run(ending.event), *map(_done, beside))
        for task in beside:
            if task.done():
                task.result()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _check(parts: Parts, shared: Shared) -> None:
    """Compare the topic with the store, again and again. Ends with what says that it is another log."""
    while True:
        await parts.machine.clock.sleep(parts.settings.metadata_refresh_ms / 1_000)
        try:
            await shared.log.check()
        except FatalError:
            raise
        except AtomlogError as error:
            parts.on_event({"event": "log_check_failed", "error": error.to_dict()})


async def _done(task: "asyncio.Future[Any]") -> None:
    await asyncio.wait((task,))


def _keeping(node: KernelNode, preferred: Collection[int] | None) -> Mapping[str, Any]:
    meant = sorted(node.keepers if preferred is None else preferred)
    return {"event": "keeping", "name": node.name, "endpoint": node.endpoint, "meant": meant}


def _shared_config(machine: Machine, directory: str) -> StoreConfig:
    config = StoreConfig.load(machine.files, directory)
    if config.kafka is None:
        message = f"{directory} is an embedded store: whoever writes to it owns it. This is for a node of a shared one"
        raise fail("INVALID_INPUT", f"{message}, made with `atomlog init --kafka`")
    return config
