"""Vectors that come with atoms are checked before anything is acknowledged, on vectors that hung an index."""

from pathlib import Path

import numpy as np
import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError


async def test_rows_of_zeros_are_refused_with_their_index_and_the_others_are_found(
    test_data: Path, tmp_path: Path
) -> None:
    rows = np.load(test_data / "vectors" / "cosine_hang.npy").astype(np.float32)
    zeros = [int(n) for n in np.flatnonzero(~rows.any(axis=1))]
    assert len(zeros) > 700
    sample = [*zeros[:50], *(n for n in range(len(rows)) if n not in set(zeros))][:100]
    space = f"supplied.hang/1/{rows.shape[1]}/cosine"

    def batch(key: str, numbers: list[int]) -> dict[str, object]:
        changes = [
            {
                "op": "create",
                "key": f"row {n}",
                "schema": "source",
                "value": {"text": str(n)},
                "vectors": {space: rows[n]},
            }
            for n in numbers
        ]
        return {"space": "hang", "idempotency_key": key, "changes": changes}

    await AsyncStore.init(str(tmp_path / "store"), vector_spaces=(space,))
    async with AsyncStore.open(str(tmp_path / "store")) as store:
        with pytest.raises(AtomlogError) as refused:
            await store.write(batch("all", sample))
        assert refused.value.code == "INVALID_INPUT"
        assert [detail["index"] for detail in refused.value.details] == list(range(50))
        assert refused.value.details[3]["path"] == f"changes[3].vectors['{space}']"
        assert (await store.status()).partitions[0]["end"] == 0
        written = await store.write(batch("others", sample[50:]))
        page = await store.get([f"key:row {n}" for n in sample[50:]], space="hang", at_least=written.receipt)
        assert len(page.atoms) == 50
