"""Every fault once, on three real brokers. `make chaos` runs longer, and draws what happens from seeds.

Each prints its seed; `ATOMLOG_TEST_SEED` sets it. With `ATOMLOG_CHAOS_SCHEDULE=FILE` the first one runs that schedule.
"""

import os
import time
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.faults import FAULTS, PARTITIONS, missing
from tests.chaos.run import Report, Schedule, run

SCHEDULE: Final = os.environ.get("ATOMLOG_CHAOS_SCHEDULE")
SEED: Final = os.environ.get("ATOMLOG_TEST_SEED") or str(int(time.time()))
UNDIVIDED: Final = [name for name in FAULTS if name not in PARTITIONS and missing(name) is None]
KILLS: Final = 1  # of `make chaos`: 5

# A machine with two cores needs about two minutes for each; a busy one more.
pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("own-broker"), pytest.mark.timeout(1_200)]


async def test_a_cluster_holds_every_promise_when_processes_connections_and_disks_fail(tmp_path: Path) -> None:
    undivided = Schedule(seed=SEED, faults=UNDIVIDED, kills=KILLS)
    report = await _run(tmp_path, undivided if SCHEDULE is None else Schedule.load(Path(SCHEDULE)))
    assert report.voids or SCHEDULE is not None, "no record was void, so nothing was shown of what becomes of those"


@pytest.mark.skipif(SCHEDULE is not None, reason="another schedule is run")
async def test_a_cluster_holds_every_promise_when_the_network_is_divided(tmp_path: Path) -> None:
    if "ATOMLOG_CHAOS_DIVIDED" not in os.environ:
        # On some machines a healed network is not reached again from outside it in time: not understood yet.
        pytest.skip("PARTITIONS OF THE NETWORK ARE TESTED BY `make chaos`, and here with ATOMLOG_CHAOS_DIVIDED=1")
    if (lack := missing(PARTITIONS[0])) is not None:
        pytest.skip(f"PARTITIONS OF THE NETWORK ARE NOT TESTED: {lack}")
    await _run(tmp_path, Schedule(seed=SEED, faults=PARTITIONS, kills=KILLS))


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in PARTITIONS])
def test_this_machine_can_try_a_fault(name: str) -> None:
    if (lack := missing(name)) is not None:
        pytest.skip(f"THE FAULT {name} IS NOT TESTED: {lack}")


async def _run(folder: Path, schedule: Schedule) -> Report:
    print(f"ATOMLOG_TEST_SEED={schedule.seed}\nATOMLOG_CHAOS_SCHEDULE={folder}/schedule.json")
    report = await run(folder, schedule, lambda what: print(time.strftime("%T"), what))
    print(report)
    return report
