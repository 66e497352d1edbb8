"""The rungs over Kafka in small, on the broker of the run: both sides do all of the work, and it is looked for."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from atomlog.consumers.bench import kafka_replay
from atomlog.consumers.bench.kafka_failover import held_against
from atomlog.consumers.bench.kafka_nodes import (
    VARIABLE,
    brokers,
    effective,
    make_nodes,
    opened_node,
    owning,
    requests,
    required_brokers,
    space_of,
)
from atomlog.consumers.bench.ladder import Bench
from atomlog.consumers.bench.measure import with_brokers
from atomlog.consumers.bench.registry import BROKERS, RUNGS
from atomlog.consumers.machine import Machine
from atomlog.kernel.errors import InvalidError
from atomlog.kernel.ids import partition_of
from atomlog.kernel.model import LOCAL_PRINCIPAL, ChangeResult, WriteReceipt, WriteResult
from atomlog.kernel.requests import parse_write
from tests.support.kafka import SharedBroker


@pytest.fixture
def bench(kafka: SharedBroker, tmp_path: Path) -> Bench:
    machine = Machine(environment={**os.environ, VARIABLE: kafka.bootstrap})
    return Bench(directory=str(tmp_path), scale="smoke", machine=machine)


@pytest.mark.parametrize("rung_id", ["P7-latency-1", "P7-batches-1"])
def test_what_an_owner_acknowledged_is_on_the_topic_and_the_base_has_sent_the_same(rung_id: str, bench: Bench) -> None:
    rung = RUNGS[rung_id]
    rung.prepare(bench)
    for _ in range(2):  # a side may be called again
        ours, base = rung.ours(bench), rung.base(bench)
        assert (ours.checked, base.checked) == (ours.units, base.units)
        assert ours.units > 0
    assert ours.figures["p99_ms"] >= ours.figures["p50_ms"] > 0


def test_what_a_client_was_told_through_the_channel_is_on_the_topic(bench: Bench) -> None:
    rung = RUNGS["P7-channel-rate-1"]
    rung.prepare(bench)
    ours = rung.ours(bench)
    assert ours.checked == ours.units > 0


def test_each_kill_is_followed_by_an_acknowledged_write_and_nothing_is_lost(bench: Bench) -> None:
    rung = RUNGS["P8"]
    rung.prepare(bench)
    ours = rung.ours(bench)
    assert ours.checked == ours.units == len(ours.seconds) == 2
    assert (ours.figures["lost"], ours.figures["doubled"]) == (0, 0)
    assert ours.figures["worst_s"] == max(ours.seconds)


def test_what_was_told_and_does_not_stand_there_is_lost(bench: Bench) -> None:
    asyncio.run(_lost(bench))


async def _lost(bench: Bench) -> None:
    await make_nodes(bench, ("node",))
    async with opened_node(f"{bench.directory}/node", bench.machine, read_only=False) as parts:
        async with owning(parts, (0,)) as owners:
            told = [await owners.write(parse_write(one), LOCAL_PRINCIPAL) for one in requests("lost", 3)]
        assert await held_against(parts, told) == (0, 0)
        assert len(await effective(parts, 0, told[1].receipt.position)) == 2
        elsewhere = _moved(told[0], told[1].receipt.position)
        assert await held_against(parts, [*told, elsewhere]) == (1, 0)


def _moved(result: WriteResult, position: int) -> WriteResult:
    """Told with another position."""
    receipt = WriteReceipt(space="bench", partition=0, position=position, term=1, chain=bytes(16))
    made = tuple(ChangeResult(alias=None, atom=one.atom, revision=one.revision) for one in result.results)
    return WriteResult(results=made, receipt=receipt, replayed=False)


def test_two_owners_write_as_much_as_one_of_both_partitions(bench: Bench) -> None:
    rung = RUNGS["P11"]
    rung.prepare(bench)
    ours, base = rung.ours(bench), rung.base(bench)
    assert ours.checked == ours.units == base.checked == base.units > 0
    assert ours.figures["lo_bytes_write"] > ours.figures["log_bytes_write"] > 100


def test_a_log_on_kafka_becomes_an_index_and_is_rebuilt_equal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_replay, "make_no_cycles", lambda: None)  # the process here is the tests'
    rebuilt = RUNGS["P12-rebuild"]
    rebuilt.prepare(bench)
    for rung in (RUNGS["P12-postings"], rebuilt):  # the same log for both
        ours, base = rung.ours(bench), rung.base(bench)
        assert ours.checked == ours.units == base.checked == base.units > 0


# -- which rungs there are brokers for


def told(names: Sequence[str], there: int) -> tuple[list[str], list[str]]:
    """The rungs that are measured, and what is said."""
    said: list[str] = []
    rungs = [RUNGS[name] for name in ("P1", "P7-rate-1", "P7-rate-3", "P8")]
    return [rung.id for rung in with_brokers(rungs, names, there, said.append)], said


def test_rungs_without_their_brokers_are_left_out_and_named() -> None:
    measured, said = told([], 0)
    assert measured == ["P1"]
    assert len(said) == 1
    assert "P7-rate-1 (1), P7-rate-3 (3), P8 (1)" in said[0]
    assert told([], 1)[0] == ["P1", "P7-rate-1", "P8"]
    assert told(["P7", "P1"], 3)[0] == ["P1", "P7-rate-3"]


def test_a_rung_that_was_named_is_not_left_out_in_silence() -> None:
    with pytest.raises(InvalidError, match=r"names no Kafka brokers.*P8 \(1\); `make bench-kafka` starts them"):
        told(["P8"], 0)
    with pytest.raises(InvalidError, match="names 3 Kafka brokers"):
        with_brokers([RUNGS["P8"]], ["P8"], 3, lambda text: None)


def test_every_rung_on_kafka_says_how_many_brokers_it_needs() -> None:
    assert {name.partition("-")[0] for name in BROKERS} == {"P7", "P8", "P11", "P12"}
    assert set(BROKERS.values()) == {1, 3}


def test_brokers_are_named_in_the_environment(tmp_path: Path) -> None:
    assert brokers({VARIABLE: "one:1,two:2"}) == ["one:1", "two:2"]
    with pytest.raises(InvalidError, match="make bench-kafka"):
        required_brokers(Bench(directory=str(tmp_path), scale="smoke", machine=Machine(environment={})))


def test_a_space_is_found_for_each_partition() -> None:
    assert [partition_of(space_of(partition, 2), 2) for partition in (0, 1)] == [0, 1]
