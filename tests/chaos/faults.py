"""All faults by name, and what a machine must have for some of them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.chaos import broker_faults, clocks, consumer_faults, network_faults, networks, owner_faults
from tests.chaos.cluster import Cluster
from tests.processes import disks

Fault = Callable[[Cluster], Awaitable[None]]

FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        owner_faults.kill_the_owner,
        owner_faults.end_the_owner,
        owner_faults.freeze_the_owner,
        owner_faults.freeze_the_owner_in_mid_append,
        owner_faults.put_a_clock_off,
        owner_faults.starve_the_followers_of_keys,
        broker_faults.kill_the_leading_broker,
        broker_faults.freeze_a_broker,
        broker_faults.bounce_all_brokers,
        broker_faults.leave_one_broker,
        broker_faults.roll_a_disk_back,
        broker_faults.lose_the_control_topic,
        network_faults.slow_the_network,
        network_faults.cut_the_network,
        network_faults.stall_the_network,
        network_faults.part_the_owner_from_the_brokers,
        network_faults.part_a_broker_from_the_others,
        network_faults.part_the_owner_and_a_broker_from_the_rest,
        consumer_faults.freeze_a_consumer,
        consumer_faults.kill_a_consumer,
        consumer_faults.kill_the_clients,
        consumer_faults.delete_the_directory_of_an_index,
        consumer_faults.damage_the_directory_of_an_index,
        consumer_faults.fill_the_disk_of_a_consumer,
    )
}
PARTITIONS: Final = tuple(name for name in FAULTS if name.startswith("part_"))
"""Faults of a divided network."""

_NEEDS: Final[Mapping[str, Callable[[], str | None]]] = {
    **dict.fromkeys(PARTITIONS, networks.missing),
    "put_a_clock_off": clocks.missing,
    "fill_the_disk_of_a_consumer": disks.missing_for_small_disks,
}


def missing(name: str) -> str | None:
    """What this machine lacks to try a fault; None when it can be tried."""
    return _NEEDS[name]() if name in _NEEDS else None


def possible() -> list[str]:
    """The faults that this machine can try."""
    return [name for name in FAULTS if missing(name) is None]
