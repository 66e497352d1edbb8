"""The local copy of a key topic: which page goes in the place of which, and how far the topic is applied."""

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel import sealing
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.followed_pages import Applied, FollowedPages, FollowedPlace, Ignored, Told
from atomlog.kernel.kafka.key_topic import page_of, page_record
from atomlog.kernel.kafka.values import FetchedRecord
from atomlog.kernel.ports import KeyPage
from atomlog.kernel.sealing import MasterKey
from atomlog.schemas.varint import WireError
from tests.support.sealed import MASTER, OTHER_MASTER, OWNER, InlineWorkers, bitmap

KEYS = hashlib.shake_256(b"followed").digest(8_192)
NAME = b"pageAAAA"
TOPIC_ID = b"t" * 16


def page_with(
    *, version: int = 1, destroyed: bytes = bytes(32), master: MasterKey = MASTER, name: bytes = NAME, **changes: Any
) -> KeyPage:
    page = KeyPage(
        page=name,
        version=version,
        maker_partition=0,
        maker_term=1,
        maker_owner=OWNER,
        master_key_id=bytes(8),
        destroyed=destroyed,
        wrapped=b"",
    )
    nonce = hashlib.sha256(repr((name, version, destroyed)).encode()).digest()[:12]
    return sealing.wrap_page(master, nonce, replace(page, **changes), KEYS)


class Copy:
    """A copy that is told pages one by one."""

    def __init__(self, path: str, master: MasterKey | None = MASTER) -> None:
        self.pages = FollowedPages(path, InlineWorkers(), topic="keys", master=master)
        self.position = 0

    def tell(self, *told: KeyPage | Told) -> Applied:
        records = [
            replace(one, offset=at) if isinstance(one, Told) else Told(offset=at, name=one.page, page=one)
            for at, one in enumerate(told, self.position)
        ]
        self.position += len(told)
        return asyncio.run(self.pages.apply(records, FollowedPlace(topic_id=TOPIC_ID, position=self.position)))

    def get(self, name: bytes = NAME) -> KeyPage | None:
        return asyncio.run(self.pages.get(name))

    def behind(self, partition: int = 0) -> list[KeyPage]:
        return list(asyncio.run(self.pages.behind(partition, 10)))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "keys.sqlite")


@pytest.fixture
def copy(path: str) -> Iterator[Copy]:
    copy = Copy(path)
    yield copy
    asyncio.run(copy.pages.close())


def test_a_page_that_is_told_is_there_with_the_place_in_the_topic(copy: Copy, path: str) -> None:
    assert asyncio.run(copy.pages.place()) == FollowedPlace()
    assert copy.tell(page_with()) == Applied(replaced=[], ignored=[])
    asyncio.run(copy.pages.close())
    again = FollowedPages(path, InlineWorkers(), topic="keys", master=MASTER)
    assert asyncio.run(again.get(NAME)) == page_with()
    assert asyncio.run(again.place()) == FollowedPlace(topic_id=TOPIC_ID, position=1)
    asyncio.run(again.close())


def test_a_higher_version_that_destroys_more_goes_in_its_place_and_is_told(copy: Copy) -> None:
    copy.tell(page_with())
    newer = page_with(version=2, destroyed=bitmap(3))
    assert copy.tell(newer) == Applied(replaced=[NAME], ignored=[])
    assert copy.get() == newer
    assert copy.behind() == []


def test_the_same_page_again_changes_nothing_and_is_nothing_strange(copy: Copy) -> None:
    assert copy.tell(page_with(), page_with()) == Applied(replaced=[], ignored=[])


STORED = page_with(version=3, destroyed=bitmap(1, 2))
STRANGE: list[tuple[KeyPage | Told, Ignored]] = [
    (page_with(), "old_version"),
    (page_with(version=3, destroyed=bitmap(1, 2, 3)), "old_version"),
    (page_with(version=4, destroyed=bitmap(1)), "destroyed_again"),
    (page_with(version=4, destroyed=bitmap(1, 2), maker_term=2), "another_maker"),
    (page_with(version=4, destroyed=bitmap(1, 2), maker_owner=b"x" * 16), "another_maker"),
    (replace(page_with(version=4, destroyed=bitmap(1, 2)), wrapped=bytes(8_220)), "broken_seal"),
    (replace(page_with(version=4, destroyed=bitmap(1, 2)), destroyed=b"\xff" * 32), "broken_seal"),
    (page_with(version=4, destroyed=b"\xff" * 32, master=OTHER_MASTER), "another_master"),
    (Told(offset=0, name=NAME, page=None, problem="no_value"), "no_value"),
    (Told(offset=0, name=NAME, page=None, problem="no_page"), "no_page"),
]


@pytest.mark.parametrize(("told", "reason"), STRANGE, ids=[f"{n}-{reason}" for n, (_, reason) in enumerate(STRANGE)])
def test_what_may_not_replace_a_page_is_skipped_and_the_page_is_to_be_written_again(
    copy: Copy, told: KeyPage | Told, reason: Ignored
) -> None:
    copy.tell(STORED)
    assert copy.tell(told) == Applied(replaced=[], ignored=[reason])
    assert copy.get() == STORED
    assert asyncio.run(copy.pages.place()).position == 2
    assert copy.behind() == [STORED]
    assert copy.behind(1) == []
    assert copy.tell(STORED).ignored == []
    assert copy.behind() == [], "it is the newest on the topic again"


def test_a_strange_record_about_a_page_that_is_not_here_leaves_nothing(copy: Copy) -> None:
    told = (Told(offset=0, name=NAME, page=None, problem="no_page"), replace(page_with(), wrapped=bytes(8_220)))
    assert copy.tell(*told).ignored == ["no_page", "broken_seal"]
    assert copy.get() is None
    assert copy.behind() == []


def test_without_the_master_key_pages_are_taken_as_they_are(path: str) -> None:
    copy = Copy(path, master=None)
    unsealed = replace(page_with(version=2), wrapped=bytes(8_220))
    assert copy.tell(page_with(), unsealed, page_with()) == Applied(replaced=[NAME], ignored=["old_version"])
    assert copy.get() == unsealed
    asyncio.run(copy.pages.close())


def test_a_page_of_another_master_key_is_kept_until_one_of_ours_comes(copy: Copy) -> None:
    """Who has the wrong master key learns so from the first; a stranger's page does not stand in ours' way."""
    foreign = page_with(version=7, destroyed=b"\xff" * 32, master=OTHER_MASTER, maker_owner=b"x" * 16)
    assert copy.tell(foreign).ignored == []
    assert copy.get() == foreign
    assert copy.tell(page_with()) == Applied(replaced=[NAME], ignored=[])
    assert copy.get() == page_with()


def test_records_of_one_read_are_applied_all_or_none(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: FollowedPages, database: object, page: KeyPage) -> None:
        if page.page == b"pageCCCC":
            raise OSError(5, "the disk of the keys")
        original(self, database, page)  # type: ignore[arg-type]

    original = FollowedPages._put_one
    monkeypatch.setattr(FollowedPages, "_put_one", failing)
    with pytest.raises(OSError, match="the disk of the keys"):
        copy.tell(page_with(), page_with(name=b"pageCCCC"))
    assert copy.get() is None
    assert asyncio.run(copy.pages.place()) == FollowedPlace()


def test_two_processes_of_a_node_fill_one_file_and_each_record_counts_once(path: str) -> None:
    first, second = Copy(path), Copy(path)
    strange = Told(offset=0, name=NAME, page=None, problem="no_value")
    newest = page_with(version=2, destroyed=bitmap(1))
    assert first.tell(page_with(), strange, newest).ignored == ["no_value"]
    assert second.tell(page_with()) == Applied(replaced=[NAME], ignored=[]), "its caches do not know of it"
    assert second.get() == newest
    assert asyncio.run(second.pages.place()).position == 3, "it is not set back"
    assert second.tell(strange, newest, page_with(version=3, destroyed=bitmap(1, 2))).ignored == []
    assert first.get() == page_with(version=3, destroyed=bitmap(1, 2))
    assert first.behind() == []
    assert asyncio.run(first.pages.place()).position == 4
    for copy in (first, second):
        asyncio.run(copy.pages.close())


def test_a_damaged_place_is_corrupt(copy: Copy) -> None:
    copy.tell(page_with())
    copy.pages._filled().execute("UPDATE followed SET topic_id = x'00'")
    with pytest.raises(AtomlogError, match="damaged") as caught:
        asyncio.run(copy.pages.place())
    assert caught.value.code == "CORRUPT"


def fetched(key: bytes | None, value: bytes | None) -> FetchedRecord:
    return FetchedRecord(offset=0, timestamp_ms=0, key=key, value=value, headers=())


def test_a_page_survives_its_record() -> None:
    record = page_record(STORED)
    assert record.key == NAME
    assert page_of(fetched(record.key, record.value)) == STORED


@pytest.mark.parametrize(
    "changed",
    [
        page_with(version=0),
        page_with(version=2**62 + 1),
        replace(STORED, maker_partition=-1),
        replace(STORED, maker_term=-1),
        replace(STORED, wrapped=b""),
        replace(STORED, wrapped=bytes(8_221)),
        replace(STORED, page=b"pageBBBB"),
    ],
    ids=["version 0", "version too high", "partition", "term", "no keys", "too many bytes", "other page"],
)
def test_a_record_that_no_owner_writes_is_no_page(changed: KeyPage) -> None:
    with pytest.raises(WireError):
        page_of(fetched(NAME, page_record(changed).value))


@pytest.mark.parametrize("cut", range(0, 300, 7))
def test_broken_bytes_are_no_page(cut: int) -> None:
    value = page_record(STORED).value
    assert value is not None
    for broken in (value[:cut], value[:cut] + b"\xff" + value[cut + 1 :], value + bytes(cut + 1), b"\xff" * cut, None):
        try:
            page_of(fetched(NAME, broken))
        except WireError:
            continue
        except BaseException as error:
            raise AssertionError(f"{broken!r}") from error
        assert broken is not None
        assert len(broken) == len(value)
