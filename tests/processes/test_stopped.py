"""A holder that stands still for longer than anybody waits, and then goes on or is killed."""

import asyncio
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.settings import Settings
from tests.acceptance.writing import source
from tests.processes.records import batches_in_the_log
from tests.support.store_process import StoreProcess

HASTY: Final = Settings(owner_socket_timeout_ms=300)


def batch(key: str) -> dict[str, Any]:
    return {"space": "notes", "idempotency_key": key, "changes": [source(key)]}


async def holding(directory: str, tmp_path: Path) -> StoreProcess:
    """Another process, which holds the store and follows everything."""
    process = await StoreProcess.start(directory, log=tmp_path / "holder.log", projections=PROJECTIONS, follow=True)
    await process.ask("write", batch=batch("by the holder"))
    return process


async def persistent(store: AsyncStore, key: str) -> dict[str, Any]:
    """The answer to a batch that is sent until there is one."""
    while True:
        try:
            return (await store.write(batch(key))).to_dict()
        except AtomlogError as error:
            assert error.code in ("IN_DOUBT", "NOT_OWNER", "STORE_LOCKED"), error
            await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("then", ["goes on", "is killed"])
async def test_writers_beside_a_holder_that_stands_still_are_told_so_and_the_same_request_tells_later(
    tmp_path: Path, then: str
) -> None:
    directory = str(tmp_path / "store")
    await AsyncStore.init(directory)
    holder = await holding(directory, tmp_path)
    async with await AsyncStore.open(directory, settings=HASTY, follow=False) as known:
        before = (await known.write(batch("before"))).to_dict()["results"][0]
        await known.wait_until_current()
        holder.process.send_signal(signal.SIGSTOP)

        # 1. The stopped process keeps its lock: nobody writes, nobody waits for ever, everybody is told.
        async with await AsyncStore.open(directory, settings=HASTY, follow=False) as late:
            for store in (known, late):
                with pytest.raises(AtomlogError) as unknown:
                    await store.write(batch(f"doubt of {'known' if store is known else 'late'}"))
                assert unknown.value.code == "IN_DOUBT"
                assert "did not answer in time" in unknown.value.message
                assert (await store.outcome("before", space="notes")).state == "unknown"
                row = (await store.get(before["atom"])).to_dict()["atoms"][0]
                assert row["value"]["text"] == "before", "reading goes on"
            assert (await late.status()).to_dict()["partitions"][0]["end"] == 3

        # 2. It goes on as if nothing had been, or another one takes over; what was in doubt is told.
        if then == "is killed":
            await holder.kill()
            assert await told(known) == {"doubt of known", "doubt of late"}
            assert known._writing.holder is not None
        else:
            holder.process.send_signal(signal.SIGCONT)
            assert await told(known) == {"doubt of known", "doubt of late"}
            assert known._writing.holder is None
            assert (await holder.ask("write", batch=batch("by the holder")))["replayed"]
            await holder.close()
        assert len(await batches_in_the_log(known)) == 4


async def told(store: AsyncStore) -> set[str]:
    found = set()
    for key in ("doubt of known", "doubt of late"):
        result = await persistent(store, key)
        again = await store.outcome(key, space="notes")
        assert again.result is not None
        assert again.result.to_dict()["receipt"] == result["receipt"]
        found.add(key)
    return found
