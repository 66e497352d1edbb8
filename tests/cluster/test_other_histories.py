"""A log on a real broker that is not the one that was applied: cut, made anew, rolled back, expired, another cluster's.

Whoever stood still meanwhile finds out at the start, whoever was following finds out while running. Nothing of the
other history is applied, and the message names the projection and the way out.
"""

from pathlib import Path

import pytest

from atomlog.consumers.follower import Follower
from tests.cluster.histories import built, history, reached, stopped
from tests.consumers.worlds import run
from tests.support.batches import create
from tests.support.kafka import SharedBroker, own_brokers

APPLIED = 20  # batches, behind a Claim
STRANGER = b"another owner 16"

pytestmark = pytest.mark.timeout(300)


async def digest(follower: Follower) -> bytes:
    async with follower.pinned() as projection:
        return projection.digest(0)


@pytest.mark.parametrize("batches", [5, 60], ids=["shorter", "longer"])
def test_a_topic_that_was_made_anew_is_refused_at_the_start(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path, batches: int
) -> None:
    async def work() -> None:
        async with history(kafka.address, f"{kafka_prefix}.atoms", tmp_path) as log:
            await log.write(built(APPLIED))
            await log.applied(APPLIED)
            await log.delete_topic()
            await log.make_topic()
            await log.write(built(batches, owner=STRANGER))
            async with log.following() as follower:
                error = await stopped(follower)
                assert "Put the log back" in error.message
                assert "atomlog rebuild toy --force" in error.message
                assert follower.positions() == {0: APPLIED}

    run(work())


def test_a_topic_that_is_made_anew_while_it_is_followed_is_never_gone_on_with(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with history(kafka.address, f"{kafka_prefix}.atoms", tmp_path) as log:
            await log.write(built(APPLIED))
            async with log.following() as follower:
                await reached(follower, APPLIED)
                before = await digest(follower)
                await log.delete_topic()
                await log.make_topic()
                await log.write(built(60, owner=STRANGER))
                # A follower that looks in between sees that there is no topic; that stops it, too.
                await stopped(follower, ("LOG_DIVERGED", "STORE_NOT_FOUND"))
                assert await digest(follower) == before
            async with log.following() as follower:
                await stopped(follower)

    run(work())


def test_a_log_of_another_cluster_under_the_same_name_is_refused(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with history(kafka.address, f"{kafka_prefix}.atoms", tmp_path) as log:
            await log.write(built(APPLIED))
            await log.applied(APPLIED)
        # Another topic stands for the other cluster: what tells them apart is what the records say.
        async with history(kafka.address, f"{kafka_prefix}.other", tmp_path) as other:
            await other.write(built(APPLIED, seed=1))
            async with other.following() as follower:
                await stopped(follower)
                assert follower.positions() == {0: APPLIED}

    run(work())


def test_records_that_expired_before_they_were_applied_are_named(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with history(kafka.address, f"{kafka_prefix}.atoms", tmp_path) as log:
            builder = built(APPLIED)
            await log.write(builder)
            await log.applied(APPLIED)
            # Nobody follows meanwhile: one that is running may have read ahead what expires.
            await log.write(built(2 * APPLIED), builder.end)
            await log.delete_records(APPLIED + 10)
            async with log.following() as follower:
                error = await stopped(follower)
                assert error.details[0]["first"] == APPLIED + 10
                assert "copy projections/toy from a node" in error.message
                assert follower.positions() == {0: APPLIED}
                assert "--force" not in error.message, "a rebuild would lack what has expired"

    run(work())


def test_records_that_expired_after_they_were_applied_do_not_stop_who_can_prove_its_place(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with history(kafka.address, f"{kafka_prefix}.atoms", tmp_path) as log:
            builder = built(APPLIED)
            await log.write(builder)
            await log.applied(APPLIED)
            await log.delete_records(APPLIED)  # the last record is kept
            await log.applied(APPLIED)
            more = built(APPLIED + 3)
            await log.write(more, builder.end)
            await log.applied(APPLIED + 3)
            await log.delete_records(more.end)  # nothing is kept: nothing proves what was applied
            async with log.following() as follower:
                error = await stopped(follower)
                assert error.details[0]["first"] == more.end

    run(work())


def test_a_broker_whose_disk_was_rolled_back_is_noticed_at_the_start_and_while_following(
    kafka_prefix: str, tmp_path: Path
) -> None:
    """Its records go on as if nothing had been: the same owner, the next number. Only the chain tells."""

    async def work() -> None:
        with own_brokers(tmp_path / "brokers") as brokers:
            brokers.start()
            node = brokers.node(1)
            topic, image = f"{kafka_prefix}.atoms", tmp_path / "image"
            one, other = tmp_path / "running", tmp_path / "resting"
            async with history(node.address, topic, one) as log:
                early = built(APPLIED)
                await log.write(early)
                node.stop()
                node.copy_disk(image)
                brokers.restart(1)
                full = built(APPLIED + 10)
                await log.write(full, early.end)
                log.root = str(other)
                await log.applied(APPLIED + 10)
                log.root = str(one)
                async with log.following() as follower:
                    await reached(follower, APPLIED + 10)
                    before = await digest(follower)
                    node.stop()
                    node.put_disk(image)
                    brokers.restart(1)
                    # The owner goes on from what the rolled-back log holds, past where the follower stands.
                    again = built(APPLIED)
                    again.now_us += 1_000_000
                    for number in range(40):
                        again.batch("notes", [create(f"other {number}", value={"text": f"other {number}"})])
                    await log.write(again, early.end)
                    await stopped(follower)
                    assert follower.positions() == {0: APPLIED + 10}
                    assert await digest(follower) == before
                log.root = str(other)
                async with log.following() as follower:
                    error = await stopped(follower)
                    assert "rolled back" in error.message
                    assert follower.positions() == {0: APPLIED + 10}

    run(work())
