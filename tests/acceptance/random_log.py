"""A random but valid history: each call gives the changes of one batch, decided on what `Brute` has seen."""

import random
from collections.abc import Mapping
from typing import Any

from tests.acceptance.writing import Change, collection, membership, retire, source
from tests.oracle.brute_model import Version
from tests.support.brute import Brute

GROUPS = ("P", "Q", "R", "S")
ORDER_KEYS = ("", "", "", "a", "b", "b0", "\u0000", "é")
ROLES = ("about", "cites", "about.also")


class RandomLog:
    """`plant` first. Every group is an atom among others: it is revised, retired and a member too."""

    def __init__(self, brute: Brute, seed: int) -> None:
        self.random = random.Random(seed)
        self._brute = brute
        self._groups: list[str] = []
        self._sources: list[str] = []
        self._memberships: list[str] = []
        self._others: list[str] = []
        self._number = 0

    def plant(self) -> list[Change]:
        return [collection(name, **{"as": f"@{name}"}) for name in GROUPS]

    def planted(self, result: Mapping[str, Any]) -> None:
        self._groups = [made["atom"] for made in result["results"]]

    @property
    def groups(self) -> list[str]:
        return self._groups

    def any_atom(self) -> str:
        return self.random.choice(self._sources + self._groups + self._memberships[-20:] + self._others[-20:])

    def next_batch(self) -> list[Change]:
        """One to four changes, of different atoms."""
        changes: list[Change] = []
        taken: set[str] = set()
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            changes += self._change(taken, len(changes))
        return changes

    def note(self, changes: list[Change], result: Mapping[str, Any]) -> None:
        """The batch was accepted: what it created may be changed from now on."""
        lists = {"source": self._sources, "membership": self._memberships, "note": self._others}
        for change, made in zip(changes, result["results"], strict=True):
            if change["op"] == "create":
                lists[change["schema"]].append(made["atom"])

    def _change(self, taken: set[str], number: int) -> list[Change]:
        kind = self.random.choices(
            ("source", "join", "part", "move", "revise", "retire", "refer"), (3, 4, 7, 3, 3, 1, 2), k=1
        )[0]
        if kind == "source" or len(self._sources) < 3:
            return self._new_source(number)
        if kind == "join":
            return [self._new_membership(self._member())]
        pools = {"part": self._memberships, "move": self._memberships, "retire": self._sources + self._others}
        if kind == "refer":
            return [{"op": "create", "schema": "note", "value": self._text(), "slots": self._slots()}]
        if kind == "part" and self.random.random() < 0.8:
            pools["part"] = [atom for atom in self._memberships if not self._brute.versions[atom][-1].retired]
        head = self._pick(pools.get(kind, self._sources + self._groups + self._others), taken)
        if head is None:
            return []
        expected = {"atom": head.atom, "revision": head.revision}
        if kind in ("part", "retire") and not head.retired:
            return [retire(expected)]
        change: Change = {"op": "revise", "atom": head.atom, "expected": head.revision, "value": self._text()}
        if head.schema == "membership":
            change |= {"value": None, "slots": self._new_membership(self._member())["slots"]}
            if self.random.random() < 0.3:
                del change["slots"]  # as they were: a retired one comes back
        elif head.schema == "note" and self.random.random() < 0.5:
            change["slots"] = self._slots()
        elif head.schema == "collection":
            change["value"] = {"title": f"group {self._count()}"}
        return [change]

    def _new_source(self, number: int) -> list[Change]:
        alias = f"@new{number}"
        made = [source(self._text()["text"], **{"as": alias})]
        return made + [self._new_membership(alias) for _ in range(self.random.choice((0, 1, 1, 2)))]

    def _new_membership(self, member: str) -> Change:
        return membership(self.random.choice(self._groups), member, order_key=self.random.choice(ORDER_KEYS))

    def _member(self) -> str:
        """Nearly always a source; sometimes a group, even of itself."""
        return self.random.choice(self._groups if self.random.random() < 0.05 else self._sources[-80:])

    def _slots(self) -> list[dict[str, Any]]:
        return [self._slot() for _ in range(self.random.choice((0, 1, 2, 3)))]

    def _slot(self) -> dict[str, Any]:
        target = self.random.choice(self._sources[-30:] + self._groups)
        slot: dict[str, Any] = {"role": self.random.choice(ROLES), "target": target}
        if self.random.random() < 0.4:
            slot["revision"] = self.random.choice(self._brute.versions[target]).revision
            slot["mode"] = self.random.choice(("refer", "include"))
        return slot

    def _pick(self, pool: list[str], taken: set[str]) -> Version | None:
        atom = self.random.choice(pool[-200:] or self._groups)
        if atom in taken:
            return None
        taken.add(atom)
        return self._brute.versions[atom][-1]

    def _text(self) -> dict[str, Any]:
        return {"text": f"note {self._count()}"}

    def _count(self) -> int:
        self._number += 1
        return self._number
