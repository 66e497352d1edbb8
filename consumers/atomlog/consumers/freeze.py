"""`members --freeze`: the members of a group as a manifest, a list of pinned versions that no later change touches.

A manifest atom holds one page of members, in order, and refers to the next one. Each is made from the receipt of the
page that it holds, so that its inputs are what was read for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_arguments import Id
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import WriteResult
from atomlog.projections.read.page import Page

ROWS: Final = Bounds().slots_max - 1  # of one manifest atom: one slot is for the next
SCHEMA: Final = "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """`manifest` is the atom of the first page; its slots lead to the others."""

    manifest: bytes
    members: int
    pages: int
    result: WriteResult

    def to_dict(self) -> dict[str, Any]:
        return {
            "manifest": format_id(self.manifest),
            "members": self.members,
            "pages": self.pages,
            **self.result.to_dict(),
        }


async def freeze(store: AsyncStore, group: Id, *, space: str, policy: str | None = None, **read: Any) -> Frozen:
    """Read all members at one position and write them down in `space`, all or nothing.

    `read` are the set algebra and the position, as in `AsyncStore.members`. The manifest is under the group's policy.

    Raises what `members` and `write` raise; BOUND_EXCEEDED for more members than one batch holds.
    """
    first = await store.members(group, space=space, policy=policy, limit=ROWS, **read)
    owner = (await store.get(group, space=space, policy=policy)).atoms[0]
    pages = [first]
    while (continuation := pages[-1].continuation) is not None:
        sets = {name: value for name, value in read.items() if name in ("and_", "or_", "not_", "include_retired")}
        pages.append(
            await store.members(group, space=space, policy=policy, limit=ROWS, continuation=continuation, **sets)
        )
    members = sum(len(page.atoms) for page in pages)
    value = {"group": format_id(owner.atom), "members": members, "pages": len(pages)}
    batch = {
        "space": space,
        "idempotency_key": f"freeze:{format_id(first.receipt.receipt)}",
        "changes": _changes(pages, owner.policy, value),
    }
    result = await store.write(batch)
    return Frozen(manifest=result.results[0].atom, members=members, pages=len(pages), result=result)


def _changes(pages: Sequence[Page], policy: str, value: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "op": "create",
            "as": f"@{number}",
            "schema": SCHEMA,
            "policy": policy,
            "value": {**value, "page": number},
            "slots": [
                *(
                    {"role": "member", "target": format_id(row.atom), "revision": format_id(row.revision)}
                    for row in page.atoms
                ),
                *([] if number == len(pages) else [{"role": "next", "target": f"@{number + 1}"}]),
            ],
            "provenance": {
                "kind": "generated",
                "activity": "members --freeze",
                "receipts": [format_id(page.receipt.receipt)],
            },
        }
        for number, page in enumerate(pages, start=1)
    ]
