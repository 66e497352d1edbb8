"""Batches to send, made from what the log says and from drawn numbers: right ones, stale ones, wrong ones."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from atomlog.kernel.ids import format_id
from tests.oracle.brute_model import Model, Version
from tests.oracle.decisions import atom_of

T = TypeVar("T")
Draw = Callable[[int], int]
"""A number from 0 on, below the one given."""

SPACES: Final = ("notes", "notes", "notes", "tasks")
KEYS: Final = ("tea", "cup", "pot", "kettle", "leaf", "water", "steam", "hour")
GROUPS: Final = ("green", "black", "white")
ROLES: Final = ("about", "cites", "about.also")
ORDER_KEYS: Final = ("", "", "a", "b", "b0", "\u0000")
KINDS: Final = ("create", "join", "revise", "refer", "keyed", "join", "revise", "retire", "activate", "group")
SCHEMAS: Final = ("source", "note", "membership", "collection")
Change = dict[str, Any]


class Requests:
    """`heads` are as of all that the log holds; one in eight expectations is of an older revision."""

    def __init__(self, model: Model, draw: Draw) -> None:
        self.model = model
        self.draw = draw
        self.at = {0: model.ends.get(0, 0) - 1}
        self.heads = model.heads(self.at)
        self.space = self.pick(SPACES)
        self.count = 0

    def batch(self, key: str) -> dict[str, Any]:
        """One to four changes of different atoms, and none to two preconditions."""
        changes: list[Change] = []
        for _ in range(self.pick((1, 1, 2, 3))):
            changes += self.changes(key)
        taken: set[bytes | str] = set()
        kept: list[Change] = []
        for change in changes:
            ref = change.get("atom") or ("key" in change and f"key:{change['key']}")
            name = atom_of(ref, self.space) if ref else f"new {len(kept)}"
            if name not in taken:
                kept.append(change)
                taken.add(name)
        batch = {"space": self.space, "idempotency_key": key, "changes": kept}
        guards = [self.guard() for _ in range(self.pick((0, 0, 0, 1, 2)))]
        return batch | ({"preconditions": guards} if guards else {})

    def changes(self, key: str) -> list[Change]:
        kind = self.pick(KINDS)
        if kind == "create":
            return self.new_members(key)
        if kind in ("keyed", "group"):
            return [self.keyed(kind, key)]
        if kind == "refer":
            return [{"op": "create", "schema": "note", "value": self.text(key), "slots": self.slots()}]
        own = [head for head in self.heads if head.space == self.space]
        if kind == "join" and (groups := [head for head in self.heads if head.schema == "collection"]) and own:
            group, member = self.pick(groups), self.pick(own)
            return [self.membership(format_id(group.atom), format_id(member.atom))]
        wanted = [head for head in own if head.retired == (kind == "activate")]
        if kind == "join" or not wanted:
            return [self.keyed("group" if kind == "join" else "keyed", key)]
        head = self.pick(wanted)
        expected = self.expected(head)
        if kind == "retire":
            return [{"op": "retire", "atom": format_id(head.atom), "expected": expected}]
        return [self.revision(head, expected, key)]

    def new_members(self, key: str) -> list[Change]:
        """A source, and its memberships in the same batch."""
        alias = f"@{self.count}"
        self.count += 1
        made: list[Change] = [{"op": "create", "as": alias, "schema": "source", "value": self.text(key)}]
        groups = [head for head in self.heads if head.schema == "collection"]
        return made + [self.membership(format_id(self.pick(groups).atom), alias) for _ in range(self.draw(3)) if groups]

    def keyed(self, kind: str, key: str) -> Change:
        if kind == "group":
            value = {"title": f"of {key}"}
            return {"op": "create", "key": self.pick(GROUPS), "schema": "collection", "value": value}
        return {"op": "create", "key": self.pick(KEYS), "schema": "source", "value": self.text(key)}

    def membership(self, group: str, member: str) -> Change:
        slots = [
            {"role": "group", "target": group},
            {"role": "member", "target": member, "order_key": self.pick(ORDER_KEYS)},
        ]
        self.count += 1
        return {"op": "create", "as": f"@{self.count + 100}", "schema": "membership", "value": {}, "slots": slots}

    def revision(self, head: Version, expected: str, key: str) -> Change:
        change: Change = {"op": "revise", "atom": format_id(head.atom), "expected": expected, "value": self.text(key)}
        if head.schema == "collection":
            change["value"] = {"title": f"again of {key}"}
        elif head.schema == "membership":
            change["value"] = {}
            groups = [one for one in self.heads if one.schema == "collection"]
            if self.draw(2) and groups:
                member = format_id(self.pick(self.heads).atom)
                change["slots"] = self.membership(format_id(self.pick(groups).atom), member)["slots"]
        elif self.draw(2):
            change["slots"] = self.slots()
        return change

    def slots(self) -> list[Change]:
        return [self.slot() for _ in range(self.draw(4)) if self.heads]

    def slot(self) -> Change:
        target = self.pick(self.heads)
        slot: Change = {"role": self.pick(ROLES), "target": format_id(target.atom)}
        if self.draw(3) == 0:
            slot["revision"] = format_id(self.pick(self.model.history(target.atom, self.at)).revision)
        return slot

    def guard(self) -> Change:
        """Nearly always of the newest state; sometimes of an older position."""
        since = self.at[0] - self.pick((0, 0, 0, 1, 4))
        kind = self.pick(("head", "absent", "unchanged", "unchanged", "range", "range", "scope"))
        own = [head for head in self.heads if head.space == self.space]
        if kind == "scope":
            return {"type": "scope", "schema": self.pick(SCHEMAS), "unchanged_since": max(since, -1)}
        if kind == "absent" or not own:
            return {"type": "absent", "atom": f"key:{self.pick(KEYS)}"}
        head = self.pick(own)
        atom = format_id(head.atom)
        if kind == "range":
            role = self.pick((*ROLES, "group", "member"))
            return {"type": "range", "role": role, "target": atom, "unchanged_since": max(since, -1)}
        if kind == "head":
            return {"type": "head", "atom": atom, "revision": self.expected(head)}
        return {"type": "unchanged", "atom": atom, "since": self.pick((max(since, -1), self.expected(head)))}

    def expected(self, head: Version) -> str:
        versions = self.model.history(head.atom, self.at)
        return format_id(self.pick(versions).revision if self.draw(8) == 7 else head.revision)

    def text(self, key: str) -> dict[str, str]:
        return {"text": f"text of {key}"}

    def pick(self, some: Sequence[T]) -> T:
        return some[self.draw(len(some))]
