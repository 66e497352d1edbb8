"""`consume`: a process that does nothing but follow the log for some projections of a store on this machine."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from atomlog.consumers.assignment import check_assignment
from atomlog.consumers.consumer_metrics import ConsumerMetrics
from atomlog.consumers.ending import Ending
from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.follower import Follower
from atomlog.consumers.generations import GenerationDirectory, HeldLock
from atomlog.consumers.machine import Machine
from atomlog.consumers.parts import PROJECTIONS, Parts, open_parts, projection_kind
from atomlog.consumers.store_arguments import name_list
from atomlog.consumers.store_config import StoreConfig
from atomlog.consumers.waiting import first_of
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.settings import Settings

if TYPE_CHECKING:
    from atomlog.consumers.cluster.listening import Listening
    from atomlog.consumers.cluster.presence import Presence

LOCK_SECONDS: Final = 0.2  # between two looks at a lock that another process has
CHECK_SECONDS: Final = 0.2  # between two looks at a follower that may have stopped


async def run_consumer(
    directory: str,
    names: Sequence[str],
    *,
    settings: Settings | None = None,
    master_key_file: str | None = None,
    machine: Machine | None = None,
    on_event: OnEvent = log_event,
    wait: bool = False,
    partitions: str | Sequence[int] | None = None,
    status_seconds: float | None = None,
    metrics_address: str | None = None,
    listen: str | None = None,
    advertise: str | None = None,
    name: str | None = None,
    stop: asyncio.Event | None = None,
) -> int:
    """Follow the log for these projections until SIGTERM, SIGINT or `stop`; the exit code for that.

    Each is followed on its own: another one's quarantine or Repair does not concern it. Events go to `on_event`, with
    `{"event": "status", "projections": […]}` every `status_seconds`. `wait`: until other processes give their locks
    back, instead of STORE_LOCKED. `partitions`: those that these projections are followed for from now on, or `all`;
    None = those that they were followed for before, all at first. `metrics_address`: HOST:PORT of a page for
    Prometheus. Of a shared store: `listen` HOST:PORT answers reads of other nodes from this directory, `advertise` is
    the host that they are told where it is another one, and `name` what this process is called. Signals are handled
    only on the main thread's event loop.

    Raises:
        STORE_NOT_FOUND, STORE_TOO_NEW, STORE_READ_ONLY, INVALID_INPUT, STORE_LOCKED naming the process that follows.
        LOG_DIVERGED, LOG_MISMATCH, UPGRADE_REQUIRED, CORRUPT: everything stands still, and no Repair can help it.
            While one partition of one projection can still go on, the process does, and `stopped` was the event.
    """
    machine = machine or Machine()
    chosen = _chosen(names)
    config = StoreConfig.load(machine.files, directory)
    if config.read_only:
        raise fail("STORE_READ_ONLY", f"{directory} is a replayed copy: nothing comes that could be followed")
    assigned = None if partitions is None else check_assignment(partitions, config.partitions, "partitions")
    async with AsyncExitStack() as closing:
        ending = Ending(stop)
        closing.callback(ending.listen())
        metrics = None if metrics_address is None else ConsumerMetrics(metrics_address, machine.randomness.token(16))
        if metrics is not None:
            on_event = metrics.listening(on_event)
        address = _checked_listen(config, listen, advertise, name)
        parts = open_parts(
            directory,
            config,
            settings=settings or Settings(),
            master_key_file=master_key_file,
            read_only=address is None,  # as far as receipts go: one that does not listen gives none out
            machine=machine,
            on_event=on_event,
        )
        closing.push_async_callback(parts.close)
        await parts.start()
        followers: list[Follower] = []
        for projection in chosen:
            follower = await _start(parts, projection, wait, assigned, ending)
            if follower is None:
                return ending.code
            closing.push_async_callback(follower.close)
            followers.append(follower)
        presence = await _present(parts, followers, address, name)
        if presence is not None:
            closing.push_async_callback(presence.close)
        endpoint = {} if presence is None or not presence.endpoint else {"endpoint": presence.endpoint}
        on_event({"event": "consuming", "projections": [_shown(follower) for follower in followers], **endpoint})
        if metrics is not None:
            closing.push_async_callback(metrics.close)
            await metrics.start(parts, followers)
        await _run(parts, followers, ending, status_seconds)
        on_event({"event": "stopping", "projections": [_shown(follower) for follower in followers]})
        return ending.code


async def _start(
    parts: Parts, name: str, wait: bool, assigned: Sequence[int] | None, ending: Ending
) -> Follower | None:
    """The follower of one projection; None when this process is to end before it got the lock."""
    directory = GenerationDirectory(parts.machine.files, parts.directory, name, parts.on_event)
    lock: HeldLock | None = directory.lock() if not wait else directory.try_lock()
    if lock is None:
        parts.on_event({"event": "waiting", "projection": name, "pid": directory.holder()})
    while lock is None:
        await first_of(ending.event.wait(), parts.machine.clock.sleep(LOCK_SECONDS))
        if ending.event.is_set():
            return None
        lock = directory.try_lock()
    if assigned is not None:
        try:
            directory.assign(assigned, parts.config.partitions)
        except BaseException:
            lock.release()
            raise
    return await Follower.start(parts.context, directory, projection_kind(parts, name), lock=lock)


def _checked_listen(
    config: StoreConfig, listen: str | None, advertise: str | None, name: str | None
) -> "Listening | None":
    """Where to listen. INVALID_INPUT for what goes with a shared store only, or is no address."""
    given = {"listen": listen, "advertise": advertise, "name": name}
    if config.kafka is None:
        for option, value in given.items():
            if value is not None:
                raise invalid(option, "this goes with a node of a shared store only")
        return None
    from atomlog.consumers.cluster.listening import checked_name, listening

    if name is not None:
        checked_name(name)
    if listen is None:
        if advertise is not None:
            raise invalid("advertise", "this goes with --listen only")
        return None
    return listening(listen, advertise)


async def _present(
    parts: Parts,
    followers: Sequence[Follower],
    address: "Listening | None",
    name: str | None,
) -> "Presence | None":
    """What tells other nodes of this process; nobody is to be told of an embedded store."""
    if parts.shared is None:
        return None
    from atomlog.consumers.cluster.kafka_control import KafkaControl
    from atomlog.consumers.cluster.presence import Presence

    return await Presence.open(
        parts,
        followers,
        topic=KafkaControl(parts.shared.client, parts.shared.names.control),
        credentials=None if address is None else parts.shared.credentials(),
        listen=None if address is None else (address.host, address.port),
        advertised_host=None if address is None else address.advertised_host,
        name=name,
    )


async def _run(parts: Parts, followers: Sequence[Follower], ending: Ending, status_seconds: float | None) -> None:
    clock = parts.machine.clock
    status_us = clock.monotonic_us()
    while not ending.event.is_set():
        if all(follower.is_stopped_for_good for follower in followers):
            raise _reason(followers[0])
        if status_seconds is not None and clock.monotonic_us() - status_us >= status_seconds * 1_000_000:
            status_us = clock.monotonic_us()
            statuses = [await follower.status() for follower in followers]
            parts.on_event({"event": "status", "projections": statuses})
        await first_of(ending.event.wait(), clock.sleep(CHECK_SECONDS))


def _reason(follower: Follower) -> AtomlogError:
    assert follower.error is not None
    return follower.error


def _shown(follower: Follower) -> dict[str, Any]:
    positions = {str(partition): position for partition, position in sorted(follower.positions().items())}
    return {"name": follower.name, "generation": follower.generation, "positions": positions}


def _chosen(names: Sequence[str]) -> list[str]:
    if not names:
        raise invalid("names", f"name at least one projection: {', '.join(PROJECTIONS)}")
    for index, name in enumerate(names):
        if name == "heads":
            message = "heads are kept by the process that writes; they need no consumer"
            raise invalid(f"names[{index}]", message)
    return name_list(names, "names", PROJECTIONS)
