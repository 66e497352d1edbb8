"""How far an inbox partition has been worked through: as far as its outcomes tell, which are the only memory of it."""

from dataclasses import dataclass
from typing import Final

from atomlog.consumers.cluster.inbox.outcomes import place_of
from atomlog.consumers.cluster.inbox.registry import Registration
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import KafkaClient, records_to

LOOK_BACK: Final = 4_096  # outcomes that are looked through: more than a kernel that was stopped can still send late


@dataclass(frozen=True, slots=True)
class Place:
    """`position`: of the next request. `lost`: the first of those before it that were thrown away, if some were."""

    position: int
    lost: int | None = None


async def find_position(client: KafkaClient, one: Registration, partition: int) -> Place:
    """One after the highest offset that an outcome of this partition tells of.

    Raises:
        LOG_DIVERGED: a topic is not the one that was registered, or is an older state of it.
        KAFKA_UNAVAILABLE, ACCESS_DENIED: of the brokers.
    """
    await check_topics(client, one)
    first, end = await client.bounds(one.topic, partition)
    told = await _last_told(client, one, partition)
    if told is not None and told >= end:
        raise _made_anew(one, f"outcomes tell of offset {told}, and the inbox ends at {end}")
    if told is not None:
        position = told + 1
    else:  # outcomes are kept longer than requests: where there were some, none of what is gone was left out
        was_told = (await client.bounds(one.results, partition))[1] > 0
        position = first if was_told else 0
    return Place(position) if position >= first else Place(first, lost=position)


async def check_topics(client: KafkaClient, one: Registration) -> AtomlogError | None:
    """LOG_DIVERGED when one of the topics is not the one that was registered.

    Returns LOG_MISMATCH when the inbox has partitions that were not registered, so that nobody reads them.
    """
    more = None
    wanted = {one.topic: one.topic_id, one.results: one.results_id}
    for name, facts in (await client.topics(list(wanted))).items():
        if facts is None:
            raise _made_anew(one, f"topic {name} is gone")
        if facts.topic_id != wanted[name]:
            raise _made_anew(one, f"topic {name} was deleted and made anew")
        if name == one.topic and facts.partitions > one.partitions:
            more = _has_more(one, facts.partitions)
    return more


async def _last_told(client: KafkaClient, one: Registration, partition: int) -> int | None:
    """Looked for from the end backwards: the highest, as those of a kernel that was stopped may come late."""
    first, stop = await client.bounds(one.results, partition)
    while stop > first:
        start = max(first, stop - LOOK_BACK)
        told = await _told_between(client, one, partition, start, stop)
        if told is not None:
            return told
        stop = start
    return None


async def _told_between(client: KafkaClient, one: Registration, partition: int, start: int, stop: int) -> int | None:
    stream = await client.stream(one.results, partition, start)
    told: int | None = None
    try:
        async for records in records_to(stream, one.results, stop):
            for record in records:
                place = place_of(record)
                if place is not None and (place.topic, place.partition) == (one.id_text, partition):
                    told = place.offset if told is None else max(told, place.offset)
    finally:
        await stream.close()
    return told


def _has_more(one: Registration, partitions: int) -> AtomlogError:
    message = f"topic {one.topic} has {partitions} partitions, {one.partitions} are registered: nobody reads the others"
    way_out = f"give {one.results} as many, then run `atomlog inbox create {one.principal}` again"
    return fail("LOG_MISMATCH", f"{message}; {way_out}")


def _made_anew(one: Registration, what: str) -> AtomlogError:
    way_out = f"`atomlog inbox create {one.principal}` registers it as it is now"
    return fail("LOG_DIVERGED", f"inbox of {one.principal}: {what}; {way_out}")
