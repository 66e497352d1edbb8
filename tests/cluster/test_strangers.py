"""What others write on the topics of a store that is in use: nothing of it counts, and nothing stands still for it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import partition_of
from atomlog.kernel.kafka.client import KafkaRecord
from tests.cluster.kernels import SETTINGS, Kernels
from tests.cluster.strangers import HOSTILE, command, is_one_clear_line, of_a_stranger, of_no_store, stranger
from tests.support.kafka import SharedBroker
from tests.support.kernel_world import batch, create

PARTITIONS = 2
HIT = 0
REST = ("keys", "control", "reads", "inboxes")

pytestmark = pytest.mark.timeout(240)


def space_in(partition: int) -> str:
    return next(name for name in (f"s{n}" for n in range(100)) if partition_of(name, PARTITIONS) == partition)


async def test_strangers_on_every_topic_are_counted_and_stop_nobody(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=PARTITIONS) as kernels:
        kernel = await kernels.start("kernel")
        await kernels.kept(kernel)
        node = await kernels.directory("node")
        environment = {"environment": SETTINGS}
        registered = await command(
            tmp_path / "inbox.log", "inbox", "create", "alice", "--store", str(node), **environment
        )
        assert registered.code == 0, registered.err
        events: list[dict[str, Any]] = []
        count = 0
        async with (
            stranger(kafka.bootstrap, kafka_prefix, node) as other,
            AsyncStore.open(node, create=False, on_event=lambda event: events.append(dict(event))) as store,
        ):

            async def write_and_read() -> None:
                nonlocal count
                count += 1
                for partition in range(PARTITIONS):
                    space, key = space_in(partition), f"a{count}"
                    made = await store.write(batch(key, create(key), space=space))
                    page = await store.get(f"key:{key}", space=space, at_least=made.receipt)
                    assert page.atoms[0].value == {"text": "text"}

            await write_and_read()
            # The log: before, between and after honest records.
            await other.send("atoms", HIT, of_no_store())
            await write_and_read()
            state = await other.state(HIT)
            for record in of_a_stranger(state):
                await other.send("atoms", HIT, [record])
            await write_and_read()
            # Everything else: with keys of every kind.
            for topic in (*REST, "inbox.alice"):
                for key in (None, b"", b"8 bytes!", b"store:" + store.config.log_id, b"x" * 16):
                    values = (None, b"", b"\xc3\x01" + bytes(8), *HOSTILE)
                    if topic in ("keys", "inboxes") and key is None:
                        continue  # a compacted topic takes none without a key
                    records = [KafkaRecord(key=key, value=value) for value in values]
                    await other.send(topic, 0, records)
            await write_and_read()
            await store.wait_until_current(60)
            ignored = [event["topic"] for event in events if event["event"] == "key_records_ignored"]
            assert set(ignored) == {f"{kafka_prefix}.keys"}
            # All of it is void in the log, counted by reason as the oracle does, and shown by status and dump.
            model = await other.judged()
            wanted = Counter(model.voids)
            assert sum(wanted.values()) == len(of_no_store()) + len(of_a_stranger(state))
            assert {"malformed", "foreign_owner", "claim_lost", "stale_term", "future_term", "seq_gap"} == set(wanted)
            seen = await command(tmp_path / "status.log", "status", "--json", "--store", str(node), **environment)
            assert seen.code == 0, seen.err
            status = json.loads(seen.out)
            assert [Counter(one["void"]) for one in status["partitions"]] == [wanted, Counter()]
            assert {one["health"] for one in status["projections"]} == {"OK"}
            dumped = await command(tmp_path / "dump.log", "log", "dump", "--json", "--store", str(node), **environment)
            assert dumped.code == 0, dumped.err
            verdicts = Counter(json.loads(line)["verdict"] for line in dumped.out.splitlines())
            assert verdicts == {
                "void": sum(wanted.values()),
                "effective": sum(model.ends.values()) - sum(wanted.values()),
            }
        # A node that joins afterwards, and one that starts over, find their way, too.
        late = await kernels.directory("late")
        async with AsyncStore.open(late, create=False) as store:
            await store.wait_until_current(60)
            for number in range(1, count + 1):
                page = await store.get(f"key:a{number}", space=space_in(HIT))
                assert page.atoms[0].value == {"text": "text"}
        # Without the master key it reads what is clear and says so; it owns nothing.
        (late / "master.key").unlink()
        bare = await command(
            tmp_path / "bare.log",
            "get",
            "key:a1",
            "--space",
            space_in(HIT),
            "--json",
            "--store",
            str(late),
            **environment,
        )
        assert bare.code == 0, bare.err
        (row,) = json.loads(bare.out)["atoms"]
        assert (row["value"], row["sealed"]) == (None, True)
        done = await command(
            tmp_path / "bare.log", "kernel", "--listen", "127.0.0.1:0", "--store", str(late), **environment
        )
        assert (done.code, is_one_clear_line(done, "KEY_UNAVAILABLE")) == (4, True), (done.code, done.err)
        assert await kernel.terminate() == 0
        again = await kernels.start("kernel")
        await kernels.kept(again)
        for partition in range(PARTITIONS):
            assert await kernels.owner(partition, [again]) is again
        assert not again.said("stopped")
