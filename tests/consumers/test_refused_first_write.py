"""A write that is refused leaves nothing durable: no record either, when it is the first of a store."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError

ABSENT = "0199c1c0-0000-7000-8000-000000000001"
SOURCE: dict[str, Any] = {"op": "create", "schema": "source", "value": {"text": "x"}}
REFUSED = {
    "NOT_FOUND": {"op": "retire", "atom": ABSENT, "expected": ABSENT},
    "REFERENCE_UNAVAILABLE": SOURCE | {"slots": [{"role": "about", "target": ABSENT, "mode": "refer"}]},
    "BOUND_EXCEEDED": SOURCE | {"slots": [{"role": "about", "target": ABSENT, "mode": "refer"}] * 65},
    "INVALID_INPUT": SOURCE | {"schema": "membership"},
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_refused_first_write_opens_no_term(tmp_path: Path, code: str) -> None:
    async def scenario() -> None:
        async with await AsyncStore.open(str(tmp_path / "store"), projections=()) as store:
            batch = {"space": "notes", "idempotency_key": "k", "changes": [REFUSED[code]]}
            with pytest.raises(AtomlogError) as refused:
                await store.write(batch)
            assert refused.value.code == code
            assert (await store.status()).partitions[0]["end"] == 0
            await store.write(batch | {"changes": [SOURCE]})
            assert (await store.status()).partitions[0]["end"] == 2

    asyncio.run(scenario())
