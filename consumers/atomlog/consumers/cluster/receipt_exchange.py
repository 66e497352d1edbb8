"""Receipts between the nodes of a shared store, over its reads topic.

A node tells what it has put into its `reads.sqlite`, and puts there what others have told: a kernel all the time, every
other process when a receipt is asked for that is not there. Nothing that is read waits for this or fails by it.

Whoever may write to the topic may write anything there, so each record carries a proof that a node made it: it needs
node.pem.
"""

import asyncio
import hmac
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from atomlog.consumers.events import OnEvent
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import KafkaClient, KafkaProducer, records_to
from atomlog.kernel.kafka.values import FetchedRecord, KafkaRecord
from atomlog.kernel.ports import Clock, Workers
from atomlog.kernel.rounds import Rounds
from atomlog.projections.read.receipts import receipt_from_bytes
from atomlog.projections.read.shelf import KeptReceipt, SqliteShelf
from atomlog.schemas import codec
from atomlog.schemas.varint import WireError

SCHEMA: Final = "ReadRecordedV1"
PURPOSE: Final = b"atomlog receipts"  # of the secret that proofs are made with
PARTITION: Final = 0  # the topic has one
VALUE_BYTES_MAX: Final = 1024 * 1024
BATCH_RECEIPTS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 512 * 1024
WAITING_MAX: Final = 10_000  # receipts; when more wait to be told, the oldest are told to nobody
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
FETCH_BYTES: Final = 256 * 1024
FOLLOW_S: Final = 2.0
CLOSE_S: Final = 2.0
RETRY_S: Final = 0.5  # doubles up to RETRY_MAX_S
RETRY_MAX_S: Final = 10.0


def read_record(receipt: KeptReceipt, log_id: bytes, secret: bytes) -> KafkaRecord:
    """The receipt as others are told of it. What its read searched for stays here: it says more than a receipt may."""
    proof = _proof(secret, receipt.id, log_id, receipt.body)
    datum = {"receipt": receipt.id, "log_id": log_id, "proof": proof, "body": receipt.body}
    return KafkaRecord(key=receipt.id, value=codec.encode_as(SCHEMA, datum))


def receipt_of(record: FetchedRecord, log_id: bytes, secret: bytes) -> KeptReceipt | str:
    """The receipt that a record tells of, or why it is none of this store: `no_receipt`, `other_log`, `no_proof`."""
    if record.value is None or len(record.value) > VALUE_BYTES_MAX:
        return "no_receipt"
    try:
        datum = codec.decode_as(SCHEMA, record.value)
    except WireError:
        return "no_receipt"
    receipt_id, body = datum["receipt"], datum["body"]
    if datum["log_id"] != log_id:
        return "other_log"
    if not hmac.compare_digest(datum["proof"], _proof(secret, receipt_id, log_id, body)):
        return "no_proof"
    try:
        receipt = receipt_from_bytes(body)
    except AtomlogError:  # of another version
        return "no_receipt"
    if not receipt.receipt == receipt_id == record.key or receipt.log_id != log_id:
        return "no_receipt"
    return KeptReceipt(id=receipt_id, body=body, search=b"")


def _proof(secret: bytes, receipt_id: bytes, log_id: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, receipt_id + log_id + body, "sha256")


class KafkaReceipts:
    """Implements `ReceiptExchange`. `secret` is asked for when it is needed, and may raise.

    `told`, `taken` and `lost` count receipts; of those that are lost no other node hears. `ignored`: records by reason.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        shelf: SqliteShelf,
        *,
        log_id: bytes,
        secret: Callable[[], bytes],
        workers: Workers,
        clock: Clock,
        timeout_s: float,
        say: OnEvent,
    ) -> None:
        self.told = self.taken = self.lost = 0
        self.ignored: Counter[str] = Counter()
        self._client = client
        self._topic = topic
        self._shelf = shelf
        self._log_id = log_id
        self._secret = secret
        self._workers = workers
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_event = say
        self._waiting: deque[KeptReceipt] = deque()
        self._waiting_bytes = 0
        self._batch_max = BATCH_RECEIPTS_MAX
        self._telling: asyncio.Task[None] | None = None
        self._producer: KafkaProducer | None = None
        self._said_lost = 0
        self._broken: set[str] = set()
        self._rounds = Rounds(self._round, lambda: fail("NOT_OWNER", "the store is closed"))

    # -- telling

    def offer(self, receipts: Sequence[KeptReceipt]) -> None:
        self._waiting.extend(receipts)
        self._waiting_bytes += sum(len(one.body) for one in receipts)
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting_bytes -= len(self._waiting.popleft().body)
            self.lost += 1
        if self._waiting and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """What is not told within CLOSE_S is told to nobody."""
        if self._telling is not None and not self._telling.done():
            if "tell" not in self._broken:
                await asyncio.wait((self._telling,), timeout=CLOSE_S)
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        self.lost += len(self._waiting)
        self._waiting.clear()
        self._say_lost()
        await self._rounds.close()
        if self._producer is not None:
            await self._producer.close()

    async def _tell(self) -> None:
        """Until nothing waits any more."""
        retry_s = RETRY_S
        while self._waiting:
            batch = self._next_batch()
            try:
                await self._send(batch)
            except BaseException as error:
                self._waiting.extendleft(reversed(batch))
                self._waiting_bytes += sum(len(one.body) for one in batch)
                if not isinstance(error, Exception):
                    raise
                if isinstance(error, AtomlogError) and error.code == "BOUND_EXCEEDED":
                    self._send_smaller(batch)
                    continue
                self._fails("tell", error)
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
                continue
            self.told += len(batch)
            retry_s = RETRY_S
            self._works("tell")
            self._say_lost()

    def _next_batch(self) -> list[KeptReceipt]:
        batch: list[KeptReceipt] = []
        size = 0
        while self._waiting and len(batch) < self._batch_max:
            size += len(self._waiting[0].body)
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
            self._waiting_bytes -= len(batch[-1].body)
        return batch

    def _send_smaller(self, refused: Sequence[KeptReceipt]) -> None:
        """One by one from now on; one that does not fit by itself is told to nobody."""
        self._batch_max = 1
        if len(refused) == 1:
            self._waiting_bytes -= len(self._waiting.popleft().body)
            self.lost += 1

    async def _send(self, batch: Sequence[KeptReceipt]) -> None:
        secret = self._secret()
        records = await self._workers.run(lambda: [read_record(one, self._log_id, secret) for one in batch])
        self._producer = self._producer or await self._client.producer()
        await self._producer.send(self._topic, PARTITION, records)  # after a failure they may be there, too

    # -- hearing

    async def catch_up(self) -> None:
        """See `ReceiptExchange.catch_up`. Reading goes on when this gives up, for the next one who asks."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._rounds.ask()
        except TimeoutError:
            message = f"topic {self._topic}: receipts of other nodes are being read and the end is not reached yet"
            raise fail("KAFKA_UNAVAILABLE", f"{message}; repeat", retry_after_ms=1_000) from None

    async def follow(self) -> None:
        """Catch up again and again; ends only by cancellation."""
        while True:
            try:
                await self._rounds.ask()
                self._works("follow")
            except Exception as error:  # whatever it is, it ends no kernel
                self._fails("follow", error)
            await self._clock.sleep(FOLLOW_S)

    async def _round(self) -> None:
        """From where this node stands to the topic's present end. Without the topic there is nothing to read."""
        secret = self._secret()
        identity = await self._client.identity(self._topic)
        if identity is None:
            return
        topic = f"topic {identity[0].hex()}"  # one that was made anew has another id, and is read from its beginning
        first, end = await self._client.bounds(self._topic, PARTITION)
        position = await self._workers.run(lambda: self._shelf.taken(topic))
        if not first <= position <= end:  # not kept any more, or rolled back
            position = first
        ignored: Counter[str] = Counter()
        stream = await self._client.stream(self._topic, PARTITION, position)
        try:
            async with aclosing(records_to(stream, self._topic, end, bytes_max=FETCH_BYTES)) as groups:
                async for records in groups:
                    ignored += await self._take(records, secret, topic, stream.position)
        except AtomlogError as error:
            if error.code == "LOG_DIVERGED":  # cut meanwhile; that is no harm here
                raise fail("KAFKA_UNAVAILABLE", error.message, retry_after_ms=1_000) from error
            raise
        finally:
            await stream.close()
            self._ignored(ignored, stream.position)

    async def _take(self, records: Sequence[FetchedRecord], secret: bytes, topic: str, position: int) -> Counter[str]:
        def take() -> tuple[int, Counter[str]]:
            found = [receipt_of(record, self._log_id, secret) for record in records]
            receipts = [one for one in found if isinstance(one, KeptReceipt)]
            self._shelf.take(receipts, topic, position)
            return len(receipts), Counter(one for one in found if isinstance(one, str))

        count, ignored = await self._workers.run(take)
        self.taken += count
        return ignored

    # -- saying

    def _ignored(self, ignored: Counter[str], position: int) -> None:
        """Once for a round, however many there are."""
        if ignored:
            self.ignored += ignored
            self._say("receipt_records_ignored", before=position, reasons=dict(ignored))

    def _say_lost(self) -> None:
        if self.lost > self._said_lost:
            self._say("receipts_lost", receipts=self.lost - self._said_lost)
            self._said_lost = self.lost

    def _fails(self, what: str, error: Exception) -> None:
        """Said once, not each time."""
        if what not in self._broken:
            self._broken.add(what)
            self._say("receipts_unavailable", what=what, error=f"{type(error).__name__}: {error}")

    def _works(self, what: str) -> None:
        if what in self._broken:
            self._broken.discard(what)
            self._say("receipts_available", what=what)

    def _say(self, name: str, **more: Any) -> None:
        self._on_event({"event": name, "topic": self._topic, **more})
