"""Key pages of a shared store: written to a compacted topic, read from a local copy that follows it.

Order: a page is put on the topic, comes back in this node's own following, is durable in its SQLite file, and only then
`put` returns. So two owners that rewrite one page see the same winner: who stands first on the topic.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError, FatalError, fail
from atomlog.kernel.kafka.client import KafkaClient, KafkaProducer, KafkaStream
from atomlog.kernel.kafka.followed_pages import FollowedPages, FollowedPlace, Told
from atomlog.kernel.kafka.key_topic import (
    FETCH_BYTES,
    FETCH_WAIT_S,
    PARTITION,
    is_page,
    is_store,
    page_of,
    page_record,
    read_store_record,
    store_of,
)
from atomlog.kernel.kafka.values import FetchedRecord, KafkaRecord
from atomlog.kernel.keys import bitmap_number
from atomlog.kernel.keystore import check_successor
from atomlog.kernel.ports import Clock, KeyPage, KeyPageOutline, Workers
from atomlog.kernel.rounds import Rounds
from atomlog.kernel.sealing import MasterKey
from atomlog.schemas.varint import WireError

RETRY_S: Final = 0.1  # until the first try after a failure; doubles up to RETRY_MAX_S
RETRY_MAX_S: Final = 5.0
LOOK_S: Final = 5.0  # between two looks whether it is the same topic
SILENT_MAX: Final = 5  # empty waits for a record that is known to be there, before the stream is made anew
_WAY_OUT: Final = "bring the right one back: beside it only the keys.sqlite of a node has its keys"
REPAIR_PAGES: Final = 32  # written again by one call: some 270 KB


class KafkaKeyStore:
    """Implements `KeyStore` on a key topic. `start` first; a bounded number of calls may wait at a time.

    Reading what is there needs no broker. `put`, `outlines` and `get` of a page that is not there do, and raise
    KAFKA_UNAVAILABLE when they were not answered within `timeout_s`; a `put` may then have worked all the same.
    LOG_DIVERGED or LOG_MISMATCH: the topic is not the one that was followed before; this ends the following.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        path: str,
        *,
        log_id: bytes,
        master: MasterKey | None,
        workers: Workers,
        clock: Clock,
        timeout_s: float,
        say: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.ignored: Counter[str] = Counter()  # records that were skipped, by reason
        self._client = client
        self._topic = topic
        self._log_id = log_id
        self._pages = FollowedPages(path, workers, topic=topic, master=master)
        self._clock = clock
        self._timeout_s = timeout_s
        self._say = say
        self._heard: list[Callable[[Sequence[bytes]], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._topic_id: bytes | None = None
        self._position = -1  # the next offset to read; −1: not looked up yet
        self._wanted = 0  # the highest offset that somebody knows to be there
        self._moved = asyncio.Event()  # set, and replaced, each time the position moves
        self._failure: AtomlogError | None = None
        self._trouble: Exception | None = None  # what keeps it from following, at the moment
        self._putting = asyncio.Lock()
        self._producer: KafkaProducer | None = None
        self._rounds = Rounds(self._round, lambda: self._failure or _closed())

    @property
    def position(self) -> int:
        """The next offset of the topic to apply; −1 before the following began."""
        return self._position

    @property
    def failure(self) -> AtomlogError | None:
        """Why the keys are not followed any more, once that is so for good."""
        return self._failure

    def listen(self, heard: Callable[[Sequence[bytes]], None]) -> None:
        """`heard` is given pages that were stored in place of others: cached keys of theirs may be destroyed."""
        self._heard.append(heard)

    async def start(self) -> None:
        """Follow the topic from now on. Waits for nothing: the broker may be away."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        self._fail(_closed())
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._rounds.close()
        if self._producer is not None:
            await self._producer.close()
        await self._pages.close()

    # -- the port

    async def put(self, pages: Sequence[KeyPage]) -> None:
        """See `KeyStore.put`. All pages go in one request: some hundred at most."""
        if not pages:
            return
        async with self._putting:
            await self._check(pages)
            await self._send_and_reach([page_record(page) for page in pages])
            for page in pages:
                self._check_arrived(page, await self._pages.get(page.page))

    async def get(self, page: bytes) -> KeyPage | None:
        """See `KeyStore.get`. None: the topic did not have it when this was asked."""
        found = await self._pages.get(page)
        if found is None:
            await self._catch_up()
            found = await self._pages.get(page)
        return found

    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        """See `KeyStore.outlines`: of every page that stood on the topic when this was asked."""
        await self._catch_up()
        return await self._pages.outlines(partition)

    async def repair(self, partition: int) -> int:
        """See `KeyStore.repair`: pages over which somebody has written something that nobody may take."""
        async with self._putting:
            pages = await self._pages.behind(partition, REPAIR_PAGES)
            if pages:
                await self._send_and_reach([page_record(page) for page in pages])
        return len(pages)

    # -- writing

    async def _check(self, pages: Sequence[KeyPage]) -> None:
        """CORRUPT when the copy shows already that a page would not be taken."""
        if len({page.page for page in pages}) < len(pages):
            raise fail("CORRUPT", f"topic {self._topic}: a key page is put twice at once")
        for page in pages:
            stored = await self._pages.get(page.page)
            if stored is not None:
                check_successor(stored, page, f"topic {self._topic}")

    def _check_arrived(self, page: KeyPage, stored: KeyPage | None) -> None:
        """CORRUPT when another one's rewriting of the page stood first on the topic.

        Not when it destroys all that this one would have: then what was to be done is done.
        """
        if stored == page:
            return
        if stored is not None and stored.version >= page.version:
            if not bitmap_number(page.destroyed) & ~bitmap_number(stored.destroyed):
                return
            check_successor(stored, page, f"topic {self._topic}")
        raise fail("CORRUPT", f"topic {self._topic}: key page {page.page.hex()} was written and not taken back")

    async def _send_and_reach(self, records: Sequence[KafkaRecord]) -> None:
        self._check_running()
        self._producer = self._producer or await self._client.producer()
        first = await self._producer.send(self._topic, PARTITION, records)  # after a failure they may be there, too
        await self._reach(first + len(records))

    # -- waiting for the following

    async def _catch_up(self) -> None:
        """Until all is applied that stood on the topic when this was asked."""
        await self._rounds.ask()

    async def _round(self) -> None:
        self._check_running()
        _, end = await self._client.bounds(self._topic, PARTITION)
        if end < self._position:  # it was made anew, as the following will find, or this broker is behind
            message = f"topic {self._topic} ends at {end}, and was followed to {self._position}"
            raise fail("KAFKA_UNAVAILABLE", message, retry_after_ms=1_000)
        await self._reach(end)

    async def _reach(self, position: int) -> None:
        """Until everything before an offset is applied."""
        self._wanted = max(self._wanted, position)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._position < position:
                    self._check_running()
                    await self._moved.wait()
        except TimeoutError:
            why = f": {self._trouble}" if self._trouble is not None else ""
            message = (
                f"topic {self._topic}: the keys are followed to offset {self._position}, not yet to {position}{why}"
            )
            raise fail("KAFKA_UNAVAILABLE", message, retry_after_ms=1_000) from None

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._task is None:
            raise RuntimeError("start the key store first")

    # -- following

    async def _follow(self) -> None:
        """Ends with what makes following impossible; anything else is tried again, later and later."""
        retry_s = RETRY_S
        while True:
            before = self._position
            try:
                await self._follow_stream()
            except (AtomlogError, OSError) as error:
                if isinstance(error, FatalError):
                    self._stop(error)
                    return
                if self._trouble is None:
                    self._say({"event": "keys_unavailable", "topic": self._topic, "error": str(error)})
                self._trouble = error
            except Exception as error:
                self._stop(
                    fail("CORRUPT", f"topic {self._topic}: keys are not followed: {type(error).__name__}: {error}")
                )
                return
            retry_s = RETRY_S if self._position > before else min(2 * retry_s, RETRY_MAX_S)
            await self._clock.sleep(retry_s)

    async def _follow_stream(self) -> None:
        place = await self._pages.place()
        self._topic_id = await self._check_topic(place)
        self._move(place.position)  # only now: up to there it is known what the topic holds
        stream = await self._client.stream(self._topic, PARTITION, self._position)
        try:
            await self._read(stream)
        finally:
            await stream.close()

    async def _read(self, stream: KafkaStream) -> None:
        """Returns when it is another topic than at the start: one that was made anew may be read on unnoticed."""
        silent, looked_us = 0, self._clock.monotonic_us()
        while True:
            records = await stream.next(FETCH_BYTES, FETCH_WAIT_S)
            if self._clock.monotonic_us() - looked_us >= LOOK_S * 1_000_000:
                identity = await self._client.identity(self._topic)
                if identity is None or identity[0] != self._topic_id:
                    return
                looked_us = self._clock.monotonic_us()
            if self._trouble is not None:
                self._trouble = None
                self._say({"event": "keys_available", "topic": self._topic, "position": self._position})
            if stream.position > self._position:  # by more than the records: compaction leaves gaps
                await self._apply(records, stream.position)
                silent = 0
            elif self._position < self._wanted:
                silent += 1
                if silent > SILENT_MAX:
                    message = f"topic {self._topic}: nothing comes from offset {self._position} on"
                    raise fail("KAFKA_UNAVAILABLE", message, retry_after_ms=1_000)

    async def _check_topic(self, place: FollowedPlace) -> bytes:
        """The topic's id. LOG_DIVERGED, LOG_MISMATCH: it is another one than was followed before."""
        facts = (await self._client.topics([self._topic]))[self._topic]
        if facts is None:
            raise fail("STORE_NOT_FOUND", f"topic {self._topic} is not there; {_WAY_OUT}")
        if place.topic_id not in (None, facts.topic_id):
            raise fail("LOG_DIVERGED", f"topic {self._topic} was removed and made anew; {_WAY_OUT}")
        first, end = await self._client.bounds(self._topic, PARTITION)
        if first > place.position or place.position > end:
            raise fail(
                "LOG_DIVERGED",
                f"topic {self._topic} has the offsets {first} to {end}, the keys here are followed to "
                f"{place.position}: it was cut; {_WAY_OUT}",
            )
        store = await read_store_record(self._client, self._topic)
        if store is None:
            raise fail("STORE_NOT_FOUND", f"topic {self._topic} does not say what store it is of; {_WAY_OUT}")
        if store.log_id != self._log_id:
            message = f"topic {self._topic} is of the store {store.log_id.hex()}, this node of {self._log_id.hex()}"
            raise fail("LOG_MISMATCH", f"{message}; connect to its own cluster and prefix")
        return facts.topic_id

    async def _apply(self, records: Sequence[FetchedRecord], position: int) -> None:
        strange = Counter(problem for record in records if (problem := self._strange(record)))
        place = FollowedPlace(topic_id=self._topic_id, position=position)
        applied = await self._pages.apply([_told(record) for record in records if is_page(record)], place)
        strange.update(applied.ignored)
        if strange:
            self.ignored += strange
            event = {"event": "key_records_ignored", "topic": self._topic, "before": position}
            self._say({**event, "reasons": dict(strange)})
        if applied.replaced:
            for heard in self._heard:
                heard(applied.replaced)
        self._move(position)

    def _move(self, position: int) -> None:
        """Tell who waits for it."""
        self._position = position
        self._moved.set()
        self._moved = asyncio.Event()

    def _strange(self, record: FetchedRecord) -> str | None:
        """Why a record that is about no page is none of ours; None for what may stand here."""
        if is_page(record):
            return None
        try:
            return None if is_store(record) and store_of(record).log_id == self._log_id else "no_page"
        except WireError:
            return "no_page"

    def _stop(self, error: AtomlogError) -> None:
        self._fail(error)
        self._say({"event": "keys_stopped", "topic": self._topic, "error": error.to_dict()})

    def _fail(self, error: AtomlogError) -> None:
        self._failure = self._failure or error
        self._moved.set()


def _told(record: FetchedRecord) -> Told:
    assert record.key is not None
    if record.value is None:
        return Told(offset=record.offset, name=record.key, page=None, problem="no_value")
    try:
        return Told(offset=record.offset, name=record.key, page=page_of(record))
    except WireError:
        return Told(offset=record.offset, name=record.key, page=None, problem="no_page")


def _closed() -> AtomlogError:
    return fail("NOT_OWNER", "the store is closed")
