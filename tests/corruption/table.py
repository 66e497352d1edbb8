"""Every kind of file of a store, and what becomes of one that is damaged. A file that fits no row fails a test.

docs/operations.md has the same rows for people, under "Damage, file by file".
"""

import re
from dataclasses import dataclass, field
from typing import Final

ANY: Final = r"projections/(?:heads|ids|relations|postings|vectors)"
ROCKS: Final = rf"(?:{ANY}/g\d{{6}}/db|projections/vectors/cache)"


@dataclass(frozen=True, slots=True)
class Kind:
    """`name` is the row of the docs. `check`: the part of the store that is asked alone; None: only the whole store.

    `codes`: what the whole store may refuse with; `says`: events, where it refuses nothing. `found`: the manners after
    which the part, or the whole store where there is none, must refuse something.
    """

    name: str
    pattern: str
    check: str | None
    codes: frozenset[str] = field(default_factory=frozenset)
    found: frozenset[str] = field(default_factory=frozenset)
    says: frozenset[str] = field(default_factory=frozenset)

    def fits(self, path: str) -> bool:
        return re.fullmatch(self.pattern, path) is not None


def _kind(name: str, pattern: str, check: str | None, *, codes: str = "", found: str = "", says: str = "") -> Kind:
    words = (frozenset(text.split()) for text in (codes, found, says))
    return Kind(name, pattern, check, *words)


EVERY_WAY: Final = "flip cut delete older exchange"
WRITTEN_ONCE: Final = "flip cut delete exchange"  # there is no older copy of the same name
INDEX: Final = "CORRUPT INDEX_LAGGING"
KINDS: Final = (
    _kind("a segment of the log", r"log/\d+/\d{20}\.seg", "log", codes=INDEX, found=EVERY_WAY),
    _kind(
        "`durable_end`",
        r"log/\d+/durable_end",
        "log",
        codes="CORRUPT LOG_DIVERGED INDEX_LAGGING INVALID_INPUT OVERLOADED",
    ),
    _kind("`owner.json`", r"log/\d+/owner\.json", "log"),
    _kind("`owner.sock`", r"owner\.sock", None, codes="NOT_OWNER"),
    _kind(
        "`store.json`", r"store\.json", None, codes="CORRUPT LOG_MISMATCH STORE_TOO_NEW STORE_NOT_FOUND INVALID_INPUT"
    ),
    _kind("the master key file", r"master\.key", "files", codes="INVALID_INPUT KEY_UNAVAILABLE", found="flip delete"),
    _kind(
        "`keys.sqlite`", r"keys\.sqlite", "keys", codes="CORRUPT KEY_UNAVAILABLE STORE_TOO_NEW", found="delete older"
    ),
    _kind(
        "`reads.sqlite`",
        r"reads\.sqlite(?:-wal|-shm)?",
        "receipts",
        codes="CORRUPT RECEIPT_EXPIRED CURSOR_EXPIRED STORE_TOO_NEW",
    ),
    _kind("a blob", r"blobs/../../[0-9a-f]{64}", None, codes="CORRUPT", found="flip cut delete exchange"),
    _kind("`CURRENT` of a projection", rf"{ANY}/CURRENT", "files", codes="CORRUPT INDEX_LAGGING", found="flip delete"),
    _kind("locks and `health.json`", rf"{ANY}/(?:lock|rebuild\.lock|health\.json)", "files"),
    _kind("scratch of a reader", rf"{ANY}/secondary-\d+-\d+/.*", None),
    _kind("a table of RocksDB", rf"{ROCKS}/\d+\.sst", "database", codes=INDEX, found=WRITTEN_ONCE),
    _kind("a log of RocksDB", rf"{ROCKS}/\d+\.log", "database", codes=INDEX, found="exchange"),
    _kind("`MANIFEST` of RocksDB", rf"{ROCKS}/MANIFEST-\d+", "database", codes=INDEX, found="flip delete exchange"),
    _kind("`CURRENT` of RocksDB", rf"{ROCKS}/CURRENT", "database", codes=INDEX, found="flip cut delete"),
    _kind(
        "the rest of RocksDB",
        rf"{ROCKS}/(?:IDENTITY|LOCK|LOG|LOG\.old\.\d+|OPTIONS-\d+|rocksdict-config\.json)",
        "database",
    ),
    _kind(
        "a shard",
        r"projections/vectors/g\d{6}/shards/[^/]*\.(?:hnsw|rows)",
        "shards",
        found=WRITTEN_ONCE,
        says="damage_found",
    ),
    _kind(
        "a manifest of shards", r"projections/vectors/g\d{6}/shards/manifest-\d+\.json", "shards", says="damage_found"
    ),
)


def kind_of(path: str) -> Kind | None:
    """The row of a file, by its path in the store."""
    return next((kind for kind in KINDS if kind.fits(path)), None)
