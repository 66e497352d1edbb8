"""P6: one atom read with its receipt, against a bare `get` of the same bytes from a RocksDB of the same size."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict

from atomlog.consumers.bench.corpus import Draws
from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale
from atomlog.consumers.bench.stopwatch import stopwatch
from atomlog.consumers.bench.writes import SPACE, text, write_all
from atomlog.consumers.machine import Machine
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import keyed_id
from atomlog.kernel.rocks import open_primary
from atomlog.kernel.settings import Settings
from atomlog.projections.ids import Ids

ATOMS: Final[Mapping[Scale, int]] = {"smoke": 300, "small": 5_000, "normal": 100_000, "large": 1_000_000}
READS: Final[Mapping[Scale, int]] = {"smoke": 200, "small": 2_000, "normal": 10_000, "large": 20_000}
BATCH: Final = 50
CURRENT_S: Final = 600.0
ROW: Final = b"R"  # of the base's rows
INDEXES: Final = ("ids",)


def batch(first: int) -> dict[str, Any]:
    """Atoms with keys, as a caller gives them."""
    changes = [
        {"op": "create", "key": str(number), "schema": "source", "value": {"text": text(number)}}
        for number in range(first, first + BATCH)
    ]
    return {"space": SPACE, "idempotency_key": f"reads-{first}", "changes": changes}


def chosen(bench: Bench) -> list[int]:
    """The atoms that both sides read, in the same order; any of the store's."""
    return list(Draws("reads").some(READS[bench.scale], ATOMS[bench.scale]))


def atom(number: int) -> bytes:
    return keyed_id(SPACE, SPACE, str(number))


async def fill(directory: str, atoms: int, machine: Machine) -> None:
    """A store of so many atoms, indexed."""
    async with AsyncStore.open(directory, machine=machine, projections=INDEXES) as store:
        await write_all(store, [batch(first) for first in range(0, atoms, BATCH)])
        await store.wait_until_current(CURRENT_S)


async def copy_rows(store: str, bare: str, atoms: int, machine: Machine) -> None:
    """A bare RocksDB with the index's row of each atom under its id."""
    kv = open_primary(bare, block_cache_bytes=Settings().block_cache_bytes)
    async with (
        AsyncStore.open(store, machine=machine, projections=INDEXES) as opened,
        opened.views["ids"].pinned() as ids,
    ):
        assert isinstance(ids, Ids)
        at = opened.views["ids"].positions()
        for first in range(0, atoms, BATCH):
            wanted = [atom(number) for number in range(first, first + BATCH)]
            kv.write([(ROW + row.atom, row.data) for row in ids.heads(wanted, at) if row is not None])
    kv.sync()
    kv.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PointReads:
    """One client that waits for each answer, in one process with the index."""

    id: str = "P6"
    title: str = "Point read of one atom: content opened, receipt recorded"
    unit: str = "s/read"
    measure: Measure = "time"
    base_name: str = "rocksdict get of the same bytes"
    goals: Sequence[Goal] = (Goal(text="≤ 10 ×", of="ratio", value=10, better="lower"),)
    peers: Sequence[str] = ()
    notes: str = (
        "`AsyncStore.get` of random atoms by id in a warm store: sealed content, as of a position, with a receipt that "
        "is written to `reads.sqlite` among the others. The base is one `get` of the revision's bytes in a RocksDB "
        "that holds nothing but them, with the same block cache and filter."
    )

    def prepare(self, bench: Bench) -> None:
        store, atoms = f"{bench.directory}/store", ATOMS[bench.scale]
        asyncio.run(fill(store, atoms, bench.machine))
        asyncio.run(copy_rows(store, f"{bench.directory}/bare", atoms, bench.machine))

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._ours(bench))

    async def _ours(self, bench: Bench) -> Sample:
        numbers = chosen(bench)
        atoms = list(map(atom, numbers))
        async with AsyncStore.open(f"{bench.directory}/store", machine=bench.machine, projections=INDEXES) as store:
            for one in atoms[: len(atoms) // 10]:
                await store.get(one)
            with stopwatch(bench.machine.clock) as took:
                pages = [await store.get(one) for one in atoms]
        texts = (page.atoms[0].value["text"] for page in pages)
        found = sum(found == text(number) for found, number in zip(texts, numbers, strict=True))
        receipts = len({page.receipt.receipt for page in pages})
        return Sample(units=len(atoms), wall_s=took.wall_s, cpu_s=took.cpu_s, checked=min(found, receipts))

    def base(self, bench: Bench) -> Sample:
        keys = [ROW + atom(number) for number in chosen(bench)]
        with_options = open_primary(f"{bench.directory}/bare", block_cache_bytes=Settings().block_cache_bytes)
        with_options.close()  # what was written last is now in a table
        bare = Rdict(f"{bench.directory}/bare", _bare_options(), access_type=AccessType.read_only())
        for key in keys[: len(keys) // 10]:
            bare.get(key)
        with stopwatch(bench.machine.clock) as took:
            values: list[Any] = [bare.get(key) for key in keys]
        bare.close()
        size = sum(map(len, values)) / len(values)
        checked = sum(value[:16] == key[1:] for key, value in zip(keys, values, strict=True))
        return Sample(
            units=len(keys), wall_s=took.wall_s, cpu_s=took.cpu_s, checked=checked, figures={"bytes_row": size}
        )


def _bare_options() -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(Settings().block_cache_bytes))
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    return options


READ_RUNGS: Final[tuple[Rung, ...]] = (PointReads(),)
