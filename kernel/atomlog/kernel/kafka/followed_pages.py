"""The copy of a key topic that a node keeps: key pages, and how far the topic is applied, in one SQLite file.

A page and the place in the topic are written in one transaction, so that what was applied is never applied to less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from atomlog.kernel import sqlite
from atomlog.kernel.keys import bitmap_number
from atomlog.kernel.keystore import SqliteKeyStore
from atomlog.kernel.ports import KeyPage, Workers
from atomlog.kernel.sealing import MasterKey, SealBroken, unwrap_page

TOPIC_ID_BYTES: Final = 16
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS followed (topic TEXT PRIMARY KEY, topic_id BLOB, position INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS behind (page BLOB PRIMARY KEY, maker_partition INTEGER NOT NULL)",
)

Ignored = Literal[
    "no_page", "no_value", "old_version", "destroyed_again", "another_maker", "broken_seal", "another_master"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPlace:
    """How far which topic is applied: the next offset to read, and the id that no other topic has or had."""

    topic_id: bytes | None = None
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One record about a page. `problem` when it carries none that can be looked at; the key names a page anyway."""

    offset: int
    name: bytes
    page: KeyPage | None
    problem: Ignored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What came of some records: pages that were stored where others stood before, and why others were skipped.

    `replaced` has every page that another process of this node had applied before.
    """

    replaced: Sequence[bytes]
    ignored: Sequence[Ignored]


class FollowedPages(SqliteKeyStore):
    """A `SqliteKeyStore` that is filled from a topic. With a `master`, only pages that it has sealed replace others.

    All processes of a node follow into one file: a record counts once, for whoever comes first.
    """

    def __init__(self, path: str, workers: Workers, *, topic: str, master: MasterKey | None) -> None:
        super().__init__(path, workers)
        self._topic = topic
        self._master = master
        self._is_filled = False

    async def place(self) -> FollowedPlace:
        return await self._workers.run(self._place)

    async def apply(self, told: Sequence[Told], after: FollowedPlace) -> Applied:
        """Apply records in order, and move to `after`: all or nothing, durable on return."""
        return await self._workers.run(lambda: self._apply(told, after))

    async def behind(self, partition: int, count_max: int) -> Sequence[KeyPage]:
        """Some pages of a partition of which the topic holds something else than what is stored."""
        return await self._workers.run(lambda: self._behind(partition, count_max))

    def _place(self) -> FollowedPlace:
        rows = self._filled().query("SELECT topic_id, position FROM followed WHERE topic = ?", (self._topic,))
        if not rows:
            return FollowedPlace()
        self._check(rows[0], (TOPIC_ID_BYTES, None))
        return FollowedPlace(topic_id=rows[0][0], position=rows[0][1])

    def _apply(self, told: Sequence[Told], after: FollowedPlace) -> Applied:
        database = self._filled()
        replaced: list[bytes] = []
        ignored: list[Ignored] = []
        with database.transaction():
            before = self._place()
            for one in told:
                if one.offset < before.position:
                    replaced.append(one.name)
                elif (problem := self._take(database, one, replaced)) is not None:
                    ignored.append(problem)
            if before.position < after.position:
                values = (self._topic, after.topic_id, after.position)
                database.execute("INSERT OR REPLACE INTO followed VALUES (?, ?, ?)", values)
        return Applied(replaced=replaced, ignored=ignored)

    def _take(self, database: sqlite.Database, told: Told, replaced: list[bytes]) -> Ignored | None:
        """Store one page if it may be; note whether the topic holds what is stored now."""
        stored = self._read(database, told.name)
        page, problem = told.page, told.problem
        if page is not None and page == stored:
            database.execute("DELETE FROM behind WHERE page = ?", (told.name,))
            return None
        if page is not None:
            problem = self._problem(stored, page)
        if problem is None:
            assert page is not None
            if stored is not None and self._is_foreign(stored):
                database.execute("DELETE FROM pages WHERE page = ?", (told.name,))
            self._put_one(database, page)
            database.execute("DELETE FROM behind WHERE page = ?", (told.name,))
            if stored is not None:
                replaced.append(told.name)
        elif stored is not None:
            database.execute("INSERT OR IGNORE INTO behind VALUES (?, ?)", (told.name, stored.maker_partition))
        return problem

    def _problem(self, stored: KeyPage | None, page: KeyPage) -> Ignored | None:
        if stored is not None and not self._is_foreign(stored):
            if page.version <= stored.version:
                return "old_version"
            if bitmap_number(stored.destroyed) & ~bitmap_number(page.destroyed):
                return "destroyed_again"
            if _maker(stored) != _maker(page):
                return "another_maker"
        if self._master is None:
            return None
        if page.master_key_id != self._master.id:  # of a first one nobody can tell: who asks for its keys is told so
            return None if stored is None else "another_master"
        try:
            unwrap_page(self._master, page)
        except SealBroken:
            return "broken_seal"
        return None

    def _is_foreign(self, stored: KeyPage) -> bool:
        """Whether it was taken although nobody could tell who sealed it: then one of our own goes before it."""
        return self._master is not None and stored.master_key_id != self._master.id

    def _behind(self, partition: int, count_max: int) -> Sequence[KeyPage]:
        database = self._filled()
        rows = database.query(
            "SELECT page FROM behind WHERE maker_partition = ? ORDER BY page LIMIT ?", (partition, count_max)
        )
        return [page for (name,) in rows if (page := self._read(database, name)) is not None]

    def _filled(self) -> sqlite.Database:
        """The file, with the tables of a topic's copy."""
        database = self._database(create=True)
        assert database is not None
        if not self._is_filled:
            with database.transaction():
                self._make_tables(database)
                for statement in _SCHEMA:
                    database.execute(statement)
            self._is_filled = True
        return database


def _maker(page: KeyPage) -> tuple[int, int, bytes]:
    """The (partition, term, owner) that made a page and alone uses its keys."""
    return page.maker_partition, page.maker_term, page.maker_owner
