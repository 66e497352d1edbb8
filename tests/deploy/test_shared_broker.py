"""The broker that the workers of one run share."""

from deploy.kafka import probe
from tests.support.kafka import SharedBroker


def test_the_shared_broker_answers(kafka: SharedBroker) -> None:
    host, _, port = kafka.address.partition(":")
    assert len(probe.metadata(host, int(port)).nodes) == 1


def test_each_prefix_is_a_new_one(kafka_prefix: str) -> None:
    assert kafka_prefix.isalnum()
