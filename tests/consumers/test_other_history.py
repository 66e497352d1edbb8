"""A log that is exchanged for another one of the same name while it is followed."""

from atomlog.consumers.applier import PartitionApplier
from atomlog.consumers.context import Context
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.system import SystemClock, ThreadWorkers
from tests.consumers.worlds import QUICK, Toy, fill, run
from tests.projections.read.worlds import BuiltLog
from tests.support.batches import LOG_ID, LogBuilder

STRANGER = b"another owner 16"


def applier_of(log: BuiltLog) -> PartitionApplier:
    context = Context(
        log=log,
        config=StoreConfig(log_id=LOG_ID),
        clock=SystemClock(),
        workers=ThreadWorkers(),
        settings=QUICK,
        on_event=lambda event: None,
    )
    return PartitionApplier(context, Toy(MemoryKv(), 1), 0)


async def applied(applier: PartitionApplier) -> None:
    """Until it moves no more."""
    while await applier.advance(lambda: None):
        pass


def test_a_longer_history_in_which_every_record_is_void_is_told_apart() -> None:
    async def work() -> None:
        log = BuiltLog([LogBuilder()])
        fill(log.logs[0], 20)
        applier = applier_of(log)
        await applied(applier)
        assert applier.position == log.logs[0].end
        # The same term by another owner: none of its records counts for who has read the first history.
        other = LogBuilder(owner=STRANGER)
        fill(other, 60)
        log.logs = [other]
        await applied(applier)
        assert applier.error is not None
        assert applier.error.code == "LOG_DIVERGED"
        assert "atomlog rebuild toy --force" in applier.error.message
        assert applier.position == 21, "nothing of it is applied"

    run(work())


def test_void_records_of_strangers_are_passed_however_many_come_in_a_row() -> None:
    async def work() -> None:
        log = BuiltLog([LogBuilder()])
        builder = log.logs[0]
        fill(builder, 3)
        applier = applier_of(log)
        await applied(applier)
        for _ in range(200):
            builder.void()
        await applied(applier)
        before = log.reads
        fill(builder, 1)
        await applied(applier)
        assert (applier.error, applier.position) == (None, builder.end)
        assert before < 400, "looking back costs no more than reading on"

    run(work())
