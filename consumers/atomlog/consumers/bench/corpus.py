"""A synthetic history for the benchmarks: the same atoms, relations and memberships for the same seed.

Half of the revisions are new texts with slots, a third memberships; one in six changes an atom that is there. A
revision takes about 850 bytes in the log. It is written through the store itself, so that what is replayed is what the
real write path makes, ids and seals and all.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.kernel.ids import format_id
from atomlog.kernel.model import WriteResult

BATCH_CHANGES: Final = 50
GROUPS_A_BATCH: Final = 1
MEMBERSHIPS_A_BATCH: Final = 16
REVISED_A_BATCH: Final = 7
RETIRED_A_BATCH: Final = 1
RECENT: Final = 2_000  # atoms that are referred to and changed: a history turns to what is new
TEXT_WORDS: Final = range(110, 210)
WORDS: Final = 4_096
TOPICS: Final = 64  # a text is about one: seven of ten words are of its own 64
TOPIC_WORDS: Final = WORDS // TOPICS
_SYLLABLES: Final = ("ka", "to", "mi", "ren", "so", "lu", "ve", "an", "shi", "or", "da", "pel", "ni", "ga", "bru", "e")


class Draws:
    """Numbers that look random and are the same in every run with the same seed."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._drawn = 0

    def some(self, count: int, below: int) -> Sequence[int]:
        """`count` numbers in [0, below), below ≤ 2^32."""
        self._drawn += 1
        raw = hashlib.shake_256(f"{self._seed}/{self._drawn}".encode()).digest(4 * count)
        return [number * below >> 32 for number in struct.unpack(f"<{count}I", raw)]

    def one(self, below: int) -> int:
        return self.some(1, below)[0]


@dataclass(slots=True)
class Corpus:
    """Writes for one space, one after the other: `accept` the result of each before the next."""

    seed: int = 1
    space: str = "bench"
    revisions: int = 0  # accepted so far
    _draws: Draws = field(init=False)
    _words: Sequence[str] = field(init=False)
    _texts: list[tuple[str, str]] = field(default_factory=list)  # (atom, head) of the newest texts
    _groups: list[str] = field(default_factory=list)
    _changes: Sequence[dict[str, Any]] = ()
    _writes: int = 0

    def __post_init__(self) -> None:
        self._draws = Draws(f"{self.space}/{self.seed}")
        syllables = self._draws.some(4 * WORDS, len(_SYLLABLES))
        sizes = self._draws.some(WORDS, 4)
        self._words = [
            "".join(_SYLLABLES[one] for one in syllables[4 * word : 4 * word + 1 + sizes[word]])
            for word in range(WORDS)
        ]

    def next_write(self) -> dict[str, Any]:
        """One batch as JSON has it."""
        self._writes += 1
        groups = [self._group(number) for number in range(GROUPS_A_BATCH)]
        changed = self._changed()
        count = BATCH_CHANGES - MEMBERSHIPS_A_BATCH - len(groups) - len(changed)
        texts = [self._new_text(number) for number in range(count)]
        memberships = [self._membership(number % count) for number in range(MEMBERSHIPS_A_BATCH)]
        self._changes = [*groups, *texts, *memberships, *changed]
        return {"space": self.space, "idempotency_key": f"corpus-{self._writes}", "changes": self._changes}

    def accept(self, result: WriteResult) -> None:
        """What became of the newest write: later ones refer to its atoms and change them."""
        for change, made in zip(self._changes, result.results, strict=True):
            atom, revision = format_id(made.atom), format_id(made.revision)
            match change["op"], change.get("schema"):
                case ("create", "collection"):
                    self._groups.append(atom)
                case ("create", "source") | ("revise", None):
                    self._texts.append((atom, revision))
        del self._texts[:-RECENT]
        del self._groups[:-RECENT]
        self.revisions += len(self._changes)

    def text(self) -> str:
        """Words of a fixed vocabulary about one topic, about 800 characters."""
        count = TEXT_WORDS[self._draws.one(len(TEXT_WORDS))]
        first = self._draws.one(TOPICS) * TOPIC_WORDS
        drawn = self._draws.some(count, 10 * WORDS)
        return " ".join(self._words[one // 10 if one % 10 > 6 else first + one // 10 % TOPIC_WORDS] for one in drawn)

    def texts(self, changes: int = BATCH_CHANGES) -> dict[str, Any]:
        """Another batch, of new texts alone; nothing refers to them."""
        self._writes += 1
        created = [{"op": "create", "schema": "source", "value": {"text": self.text()}} for _ in range(changes)]
        return {"space": self.space, "idempotency_key": f"corpus-{self._writes}", "changes": created}

    def _group(self, number: int) -> dict[str, Any]:
        title = f"group {self._writes}-{number}"
        return {"op": "create", "as": f"@g{number}", "schema": "collection", "value": {"title": title}}

    def _new_text(self, number: int) -> dict[str, Any]:
        change = {"op": "create", "as": f"@t{number}", "schema": "source", "value": {"text": self.text()}}
        wanted = self._draws.one(3) if self._texts else 0
        slots = [{"role": "about", "target": self._texts[one][0]} for one in self._draws.some(wanted, len(self._texts))]
        return {**change, "slots": slots} if slots else change

    def _membership(self, number: int) -> dict[str, Any]:
        """A new text in a group: its own batch's mostly, else one that is there."""
        groups = self._groups
        group = "@g0" if not groups or self._draws.one(2) else groups[self._draws.one(len(groups))]
        member = {"role": "member", "target": f"@t{number}", "order_key": f"{self._draws.one(10_000):05d}"}
        return {"op": "create", "schema": "membership", "slots": [{"role": "group", "target": group}, member]}

    def _changed(self) -> list[dict[str, Any]]:
        """New texts of old atoms, and some atoms retired. They are not chosen again until `accept`."""
        count = min(REVISED_A_BATCH + RETIRED_A_BATCH, len(self._texts))
        chosen = [self._texts.pop(self._draws.one(len(self._texts))) for _ in range(count)]
        revised = [
            {"op": "revise", "atom": atom, "expected": head, "value": {"text": self.text()}}
            for atom, head in chosen[RETIRED_A_BATCH:]
        ]
        retired = [{"op": "retire", "atom": atom, "expected": head} for atom, head in chosen[:RETIRED_A_BATCH]]
        return [*revised, *retired]
