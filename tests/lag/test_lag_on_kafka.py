"""On Kafka: one index after the other stands still while the partition's owner changes; pages stay of one state.

What the embedded suite does with directories is the same code over the same files; what another log adds is that
writes go on through another owner in the meantime.
"""

import os
import random
from pathlib import Path

import pytest

from atomlog.consumers.parts import PROJECTIONS
from tests.acceptance.writing import members
from tests.lag.test_lag import BATCHES, Shop
from tests.support.deployments import OnKafka, Shape, deploy
from tests.support.kafka import SharedBroker

pytestmark = pytest.mark.timeout(600)


async def test_F13_each_index_stands_still_while_ownership_moves_and_is_read_at_one_state(
    tmp_path: Path, kafka: SharedBroker
) -> None:
    seed = int(os.environ.get("ATOMLOG_TEST_SEED", random.randrange(1 << 32)))
    print(f"ATOMLOG_TEST_SEED={seed}")
    deployment = await deploy("kafka", tmp_path, Shape(settings={"postings_window": 10_000}), broker=kafka)
    assert isinstance(deployment, OnKafka)
    try:
        shop = Shop(deployment, random.Random(seed))
        await shop.plant()
        for index in PROJECTIONS:
            async with shop.reading():
                await shop.write(BATCHES)
                await deployment.pause(index)
                await shop.write(1)
                await deployment.move_owners()
                await shop.write(BATCHES)
                await shop.read_all()
                before = shop.refusals.total()
                both = members(shop.made["p"]["atom"], **{"and": [shop.made["q"]["atom"]]})
                await shop.read(both, at_least=shop.last)
                if index != "vectors":
                    assert shop.refusals.total() > before
                    assert shop.refusals["INDEX_LAGGING", index] > 0
                await deployment.resume(index)
                await shop.write(BATCHES)
            await deployment.current()
            assert {name for _, name in shop.refusals} <= {index}, shop.refusals
            shop.check()
            shop.refusals.clear()
        await shop.read_all()
        assert len(shop.pages) == 2 * len(shop.selectors()), "nothing is refused any more"
        end = await deployment.end() - 1
        for selector, page in shop.pages:
            assert page.positions == {0: end}, selector
        shop.check()
        terms = {record["term"] async for record in deployment.writer.log_dump() if record["verdict"] == "effective"}
        assert len(terms) > len(PROJECTIONS), "each time another owner took over"
    finally:
        await deployment.close()
