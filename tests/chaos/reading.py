"""A reader that goes on during a run. What it was told, and its receipts, are held against the log afterwards."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, parse_id
from tests.chaos.records import Log

PAUSE_S: Final = 1.0
LOOKS_MAX: Final = 200
ROWS: Final = 200
# What a read may be refused for while something is out of order: never another answer.
PASSING: Final = ("INDEX_LAGGING", "CONSISTENCY_UNAVAILABLE", "KEY_UNAVAILABLE", "KAFKA_UNAVAILABLE", "OVERLOADED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The history of an atom as it was read at some moment. `is_whole`: there was no further page."""

    atom: str
    positions: dict[int, int]
    revisions: list[str]
    is_whole: bool
    receipt: str
    body: bytes


async def read_on(store: AsyncStore, atoms: Sequence[str], seed: str, seen: list[Seen]) -> None:
    """Until it is cancelled."""
    chance = random.Random(seed)
    while len(seen) < LOOKS_MAX:
        try:
            seen.append(await look(store, chance.choice(atoms)))
        except AtomlogError as error:
            assert error.code in PASSING, error
        await asyncio.sleep(PAUSE_S)


async def look(store: AsyncStore, atom: str) -> Seen:
    page = await store.history(atom, limit=ROWS)
    told: dict[str, Any] = page.to_dict()
    places = told["receipt"]["positions"]
    return Seen(
        atom=atom,
        positions={int(partition): place["position"] for partition, place in places.items()},
        revisions=[row["revision"] for row in told["atoms"]],
        is_whole=told["continuation"] is None,
        receipt=told["receipt"]["receipt"],
        body=page.body(),
    )


def reads_were_true(log: Log, seen: Sequence[Seen]) -> None:
    """Each told the atom's revisions as of its positions, as the log has them now."""
    for one in seen:
        history = log.model.history(parse_id(one.atom, "atom"), one.positions)
        expected = [format_id(version.revision) for version in history]
        found = expected if one.is_whole else expected[: len(one.revisions)]
        assert one.revisions == found, (
            f"{one.atom} as of {one.positions} is {expected}, and was read as {one.revisions}"
        )


async def receipts_replay(store: AsyncStore, seen: Sequence[Seen]) -> None:
    """Each to the same bytes, by another process or store than the one that read."""
    for one in seen:
        again = await store.replay(one.receipt)
        assert again.body() == one.body, f"receipt {one.receipt} of {one.atom} replays to other bytes"
