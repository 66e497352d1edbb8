"""Background embedding: bounded batches of waiting rows, in ordinal order, with failed ones tried again between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from atomlog.kernel.content import ContentOpener
from atomlog.kernel.kv import prefix_end, u16, u32
from atomlog.kernel.ports import Kv
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.encoders import Encoder
from atomlog.projections.vectors.blocks import F32
from atomlog.projections.vectors.cache import EmbeddingCache
from atomlog.projections.vectors.layout import (
    FAILED,
    LATE,
    QUEUE,
    RETRY,
    VECTOR,
    WORK,
    Ending,
    Trouble,
    Work,
    in_space,
    ordinal_of,
    space_tag,
)
from atomlog.projections.vectors.outcomes import Failure, Nothing, Outcome, Undecided, outcomes_of

RETRY_CHUNK: Final = 1_000  # rows given back to the queue in one write


@dataclass(frozen=True, slots=True)
class _Batch:
    """`retries` are below the cursor, `fresh` begin at it."""

    retries: tuple[int, ...]
    fresh: range

    @property
    def ordinals(self) -> tuple[int, ...]:
        return (*self.retries, *self.fresh)


class Embedder:
    """Not for two tasks at once."""

    def __init__(self, kv: Kv, spaces: Sequence[VectorSpace], cache: EmbeddingCache | None, settings: Settings) -> None:
        self.outages: dict[str, str] = {}  # space id → why its encoder is down
        self._kv = kv
        self._spaces = spaces
        self._cache = cache
        self._settings = settings

    def work(self, partition: int, space: VectorSpace) -> Work:
        return Work.from_bytes(self._kv.get(in_space(WORK, partition, space_tag(space.id))))

    async def advance(
        self, partition: int, space: VectorSpace, encoder: Encoder, content: ContentOpener, rows: int
    ) -> bool:
        """Bring one batch further; False when there was none, or when no row got any further."""
        batch = self._due(partition, space, rows)
        ordinals = batch.ordinals
        if not ordinals:
            return False
        revisions = self._kv.get_many([QUEUE + u16(partition) + u32(ordinal) for ordinal in ordinals])
        found = await outcomes_of(revisions, space, encoder, content, self._cache)
        outcomes = dict(zip(ordinals, found, strict=True))
        self._note_outage(space, found)
        decided = [ordinal for ordinal in batch.retries if not isinstance(outcomes[ordinal], Undecided)]
        cursor = next((o for o in batch.fresh if isinstance(outcomes[o], Undecided)), batch.fresh.stop)
        fresh = range(batch.fresh.start, cursor)
        if not decided and not fresh:
            return False
        self._commit(partition, space, {o: outcomes[o] for o in (*decided, *fresh)}, cursor)
        return bool(fresh) or not all(_asks_again(outcomes[ordinal]) for ordinal in decided)

    def retry_failed(self, partition: int, space: VectorSpace) -> int:
        """Queue every row again that ended without a vector for another reason than erasure; how many."""
        failed, retry = (in_space(tag, partition, space_tag(space.id)) for tag in (FAILED, RETRY))
        total = 0
        start = failed
        while chunk := list(islice(self._kv.scan(start, prefix_end(failed)), RETRY_CHUNK)):
            start = chunk[-1][0] + b"\x00"
            again = [
                (key, trouble) for key, raw in chunk if (trouble := Trouble.from_bytes(raw)).ending != Ending.PURGED
            ]
            puts = [
                (retry + key[-4:], replace(trouble, ending=Ending.RETRY, attempts=0).to_bytes())
                for key, trouble in again
            ]
            work = self.work(partition, space)
            for _, trouble in again:
                work = _counted(work, trouble.ending, -1)
            work = replace(work, retrying=work.retrying + len(again), version=work.version + 1)
            self._kv.write([*puts, self._work_pair(partition, space, work)], [key for key, _ in again])
            total += len(again)
        return total

    def _due(self, partition: int, space: VectorSpace, rows: int) -> _Batch:
        """Rows to be tried again take up to half of a batch, so that neither kind waits for the other."""
        work = self.work(partition, space)
        size = max(2, self._settings.embed_batch)
        retries: tuple[int, ...] = ()
        if work.retrying:
            prefix = in_space(RETRY, partition, space_tag(space.id))
            keys = islice(self._kv.scan(prefix, prefix_end(prefix)), size // 2)
            retries = tuple(ordinal_of(key) for key, _ in keys)
        return _Batch(retries, range(work.cursor, min(rows, work.cursor + size - len(retries))))

    def _note_outage(self, space: VectorSpace, found: Sequence[Outcome]) -> None:
        down = next((one.error for one in found if isinstance(one, Undecided)), None)
        if down is None:
            self.outages.pop(space.id, None)
        else:
            self.outages[space.id] = down

    def _commit(self, partition: int, space: VectorSpace, outcomes: dict[int, Outcome], cursor: int) -> None:
        """All of a batch in one write; the queue lets go of rows that every space is done with."""
        tag = space_tag(space.id)
        vectors, retry, failed, late = (in_space(t, partition, tag) for t in (VECTOR, RETRY, FAILED, LATE))
        work = self.work(partition, space)
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        done: list[int] = []
        embedded = came_late = 0
        for ordinal, outcome in outcomes.items():
            again = ordinal < work.cursor
            number = u32(ordinal)
            if again:
                work = replace(work, retrying=work.retrying - 1)
                deletes.append(retry + number)
            if isinstance(outcome, Failure):
                trouble = self._trouble(outcome, self._kv.get(retry + number) if again else None)
                work = _counted(work, trouble.ending, 1)
                puts.append(((retry if trouble.ending == Ending.RETRY else failed) + number, trouble.to_bytes()))
                if trouble.ending != Ending.PURGED:
                    continue
            elif not isinstance(outcome, Nothing | Undecided):
                embedded += 1
                puts.append((vectors + number, outcome.astype(F32).tobytes()))
                if again:
                    came_late += 1
                    puts.append((late + number, b""))
            done.append(ordinal)
        work = replace(
            work,
            cursor=cursor,
            version=work.version + 1,
            embedded=work.embedded + embedded,
            late=work.late + came_late,
        )
        puts.append(self._work_pair(partition, space, work))
        deletes += [QUEUE + u16(partition) + u32(ordinal) for ordinal in self._released(partition, space, done)]
        self._kv.write(puts, deletes)

    def _trouble(self, failure: Failure, before: bytes | None) -> Trouble:
        attempts = 1 + (Trouble.from_bytes(before).attempts if before else 0)
        last = failure.ending == Ending.RETRY and attempts > self._settings.embed_retries
        return Trouble(ending=Ending.FAILED if last else failure.ending, attempts=attempts, error=failure.error)

    def _released(self, partition: int, space: VectorSpace, done: Sequence[int]) -> Sequence[int]:
        """Those of the rows that no other space still waits for."""
        for other in self._spaces:
            if other.id == space.id:
                continue
            cursor = self.work(partition, other).cursor
            passed = [ordinal for ordinal in done if ordinal < cursor]
            tag = space_tag(other.id)
            waits = self._kv.get_many([in_space(RETRY, partition, tag) + u32(ordinal) for ordinal in passed])
            ended = self._kv.get_many([in_space(FAILED, partition, tag) + u32(ordinal) for ordinal in passed])
            done = [
                ordinal
                for ordinal, wait, end in zip(passed, waits, ended, strict=True)
                if wait is None and (end is None or Trouble.from_bytes(end).ending == Ending.PURGED)
            ]
        return done

    def _work_pair(self, partition: int, space: VectorSpace, work: Work) -> tuple[bytes, bytes]:
        return in_space(WORK, partition, space_tag(space.id)), work.to_bytes()


def _asks_again(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.ending == Ending.RETRY


def _counted(work: Work, ending: Ending, change: int) -> Work:
    """The count of rows with this ending, changed."""
    match ending:
        case Ending.RETRY:
            return replace(work, retrying=work.retrying + change)
        case Ending.FAILED:
            return replace(work, failed=work.failed + change)
        case Ending.SEALED:
            return replace(work, sealed=work.sealed + change)
        case Ending.PURGED:
            return replace(work, purged=work.purged + change)
