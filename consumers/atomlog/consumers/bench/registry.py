"""Every rung of the ladder, in the order in which they are run and shown."""

from collections.abc import Mapping
from typing import Final

from atomlog.consumers.bench.growth import GROWTH_RUNGS
from atomlog.consumers.bench.kafka_failover import FAIL_OVER_RUNGS
from atomlog.consumers.bench.kafka_owners import OWNER_RUNGS
from atomlog.consumers.bench.kafka_replay import KAFKA_REPLAY_RUNGS
from atomlog.consumers.bench.kafka_writes import KAFKA_WRITE_RUNGS
from atomlog.consumers.bench.ladder import KafkaRung, Rung
from atomlog.consumers.bench.opening import OPENING_RUNGS
from atomlog.consumers.bench.reads import READ_RUNGS
from atomlog.consumers.bench.replay import REPLAY_RUNGS
from atomlog.consumers.bench.vectors import VECTOR_RUNGS
from atomlog.consumers.bench.writes import WRITE_RUNGS

_HERE: tuple[Rung, ...] = (*WRITE_RUNGS, *REPLAY_RUNGS, *VECTOR_RUNGS, *READ_RUNGS, *GROWTH_RUNGS, *OPENING_RUNGS)
_ON_KAFKA: tuple[KafkaRung, ...] = (*KAFKA_WRITE_RUNGS, *FAIL_OVER_RUNGS, *OWNER_RUNGS, *KAFKA_REPLAY_RUNGS)
RUNGS: Final[Mapping[str, Rung]] = {rung.id: rung for rung in (*_HERE, *_ON_KAFKA)}
BROKERS: Final[Mapping[str, int]] = {rung.id: rung.nodes for rung in _ON_KAFKA}
"""Of each rung that needs some: how many Kafka brokers it is measured with."""
