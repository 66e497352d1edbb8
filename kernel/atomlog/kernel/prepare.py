"""Gathers what a decision needs and what can never change: digests, drawn ids, source texts, receipts' inputs.

All waiting of a write before its decision happens here, so that `decide` stays pure.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel import model
from atomlog.kernel.content import ContentOpener, Opened
from atomlog.kernel.errors import AtomlogError, Detail, fail
from atomlog.kernel.heads import HeadView
from atomlog.kernel.ids import uuid7
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.plan import Assigned, Prepared
from atomlog.kernel.ports import Clock, Log, Randomness, Receipts
from atomlog.kernel.results import Digests, digests_of, read_effective
from atomlog.schemas.revision import ZERO_KEY, Inputs

GATHERED_CODES: Final = ("RECEIPT_EXPIRED", "NOT_FOUND", "KEY_UNAVAILABLE", "PURGED", "INVALID_INPUT")
NO_KEY: Final = bytes(32)
NOTHING: Final[Mapping[Any, Any]] = {}
_DRAWN_MAX: Final = 1_024


class DigestKeys:
    """The key of each space that digests of its requests are made with: the one in use, or one drawn for a new space.

    A drawn key counts in the term it was drawn in, until a batch of the space is appended; `clear` ends that.
    """

    def __init__(self, view: HeadView, partition: int, allocator: KeyAllocator) -> None:
        self._view = view
        self._partition = partition
        self._allocator = allocator
        self._drawn: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()

    def find(self, space: str) -> bytes | None:
        drawn = self._drawn.get(space)
        return self._view.digest_key(self._partition, space) or (None if drawn is None else drawn[0])

    def draw(self, space: str) -> None:
        """Draw one if there is none and a key is ready."""
        if self.find(space) is None and self._allocator.ready:
            self._drawn[space] = self._allocator.take()
            if len(self._drawn) > _DRAWN_MAX:
                former, key = self._drawn.popitem(last=False)
                if self.find(former) is None:  # no batch of the space came to be
                    self._allocator.give_back([key])

    def clear(self) -> None:
        self._drawn.clear()


@dataclass(slots=True)
class Preparer:
    """Prepares the writes of one partition. `unread` finds a revision that is appended and not yet read back.

    `settled` reads the heads alone, `view` through the overlay.
    """

    partition: int
    view: HeadView
    settled: HeadView
    log: Log
    ring: KeyRing
    content: ContentOpener
    receipts: Receipts | None
    clock: Clock
    randomness: Randomness
    unread: Callable[[bytes], bytes | None]

    async def prepare(
        self,
        request: model.WriteRequest,
        principal: str,
        digest_key_id: bytes | None,
        digests: Digests | None = None,
    ) -> Prepared:
        """Every fact about the request; what could not be resolved is in `failures`, for the decision to report.

        `digest_key_id` None: the space has none yet, so that no request of it was ever accepted. `digests` are those of
        the request if they were made before; under another key they are made anew.
        """
        if digest_key_id is None:
            digests = digests_of(request, principal, ZERO_KEY, NO_KEY)
        elif digests is None or digests.key_id != digest_key_id:
            key = self.ring.key_now(digest_key_id) or await self.ring.key(digest_key_id)
            digests = digests_of(request, principal, digest_key_id, key)
        failures: list[Detail] = []
        handles: Mapping[model.Handle, bytes] = NOTHING
        texts: Mapping[bytes, bytes | None] = NOTHING
        inputs: Mapping[str, Inputs] = NOTHING
        if not _stands_alone(request):
            handles = await self._handles(request, failures)
            texts = await self._texts(request, failures)
            inputs = await self._inputs(request, failures)
            await self._content_keys(request, handles)
        return Prepared(
            request=request,
            principal=principal,
            request_key=digests.request_key,
            request_digest=digests.request_digest,
            digest_key_id=digests.key_id,
            assigned=self._assigned(len(request.changes)),
            texts=texts,
            inputs=inputs,
            handles=handles,
            failures=tuple(failures),
        )

    def _assigned(self, count: int) -> tuple[Assigned, ...]:
        now_us, token = self.clock.now_us(), self.randomness.token
        return tuple([Assigned(uuid7(now_us, token(10)), uuid7(now_us, token(10))) for _ in range(count)])

    async def _handles(self, request: model.WriteRequest, failures: list[Detail]) -> Mapping[model.Handle, bytes]:
        resolved: dict[model.Handle, bytes] = {}
        for path, handle in _handles_of(request):
            try:
                resolved[handle] = (await self._need_receipts(path).row(handle.receipt, handle.handle))[0]
            except AtomlogError as error:
                failures.append(_failure(path, error))
                resolved[handle] = bytes(16)
        return resolved

    def _need_receipts(self, path: str) -> Receipts:
        if self.receipts is None:
            raise fail("RECEIPT_EXPIRED", f"{path}: this process keeps no receipts")
        return self.receipts

    async def _texts(self, request: model.WriteRequest, failures: list[Detail]) -> Mapping[bytes, bytes | None]:
        texts: dict[bytes, bytes | None] = {}
        for change in request.changes:
            if isinstance(change, model.Retire):
                continue
            for n, origin in enumerate(change.origins):
                if isinstance(origin.revision, model.Alias) or origin.revision in texts:
                    continue
                try:
                    data = await self._revision_bytes(origin.revision)
                    if data is not None:
                        texts[origin.revision] = await self._text(data)
                except AtomlogError as error:
                    failures.append(_failure(f"{change.path}.origins[{n}].revision", error))
        return texts

    async def _text(self, revision: bytes) -> bytes | None:
        opened = await self.content.open(revision)
        if not isinstance(opened, Opened):
            raise fail("KEY_UNAVAILABLE", f"the source revision cannot be read: {opened.reason}")
        return opened.text_bytes

    async def _revision_bytes(self, revision: bytes) -> bytes | None:
        """None when it is not known: the decision reports it as a reference that could not be confirmed."""
        place = self.settled.revision(self.partition, revision)
        if place is None:
            return self.unread(revision)
        record = await read_effective(self.log, place.partition, place.position)
        return record.batch().revisions[place.index]

    async def _inputs(self, request: model.WriteRequest, failures: list[Detail]) -> Mapping[str, Inputs]:
        inputs: dict[str, Inputs] = {}
        for change in request.changes:
            if isinstance(change, model.Retire) or not change.provenance.receipts:
                continue
            path = f"{change.path}.provenance.receipts"
            try:
                inputs[change.path] = await self._need_receipts(path).inputs(change.provenance.receipts, path)
            except AtomlogError as error:
                failure = _failure(path, error)
                failures.extend(error.details or [failure])  # they name the very receipt
        return inputs

    async def _content_keys(self, request: model.WriteRequest, handles: Mapping[model.Handle, bytes]) -> None:
        """Have the keys of the atoms that are changed at hand: sealing does not wait."""
        for change in request.changes:
            if isinstance(change, model.Create) or isinstance(change.atom, model.Alias):
                continue
            atom = handles[change.atom] if isinstance(change.atom, model.Handle) else change.atom
            head = self.view.head(self.partition, atom)
            if head is not None and head.clear.key_id is not None:
                await self.ring.key(head.clear.key_id)


def _stands_alone(request: model.WriteRequest) -> bool:
    """Whether it only makes atoms that refer to nothing, so that there is nothing to be looked up for it."""
    if request.preconditions:
        return False
    for change in request.changes:
        if not isinstance(change, model.Create) or not model.refers_to_nothing(change):
            return False
    return True


def cited_receipts(request: model.WriteRequest) -> Sequence[bytes]:
    """The receipts that the request rests on, each once: they have to be durable before it is."""
    if _stands_alone(request):
        return ()
    cited = [handle.receipt for _, handle in _handles_of(request)]
    for change in request.changes:
        if not isinstance(change, model.Retire):
            cited += change.provenance.receipts
    return tuple(dict.fromkeys(cited))


def _handles_of(request: model.WriteRequest) -> list[tuple[str, model.Handle]]:
    found: list[tuple[str, object]] = []
    for change in request.changes:
        if not isinstance(change, model.Create):
            found.append((f"{change.path}.atom", change.atom))
        if isinstance(change, model.Retire):
            continue
        if change.slots and not isinstance(change.slots, model.Keep):
            found += [(f"{change.path}.slots[{n}].target", slot.target) for n, slot in enumerate(change.slots)]
        if change.origins:
            found += [(f"{change.path}.origins[{n}].source", one.source) for n, one in enumerate(change.origins)]
    for guard in request.preconditions:
        if isinstance(guard, model.RangeUnchanged):
            found.append((f"{guard.path}.target", guard.target))
        elif not isinstance(guard, model.ScopeUnchanged):
            found.append((f"{guard.path}.atom", guard.atom))
    return [(path, ref) for path, ref in found if isinstance(ref, model.Handle)]


def _failure(path: str, error: AtomlogError) -> Detail:
    if error.code not in GATHERED_CODES:
        raise error  # CORRUPT and the like are no matter of this request
    return {"path": path, "code": error.code, "message": error.message}
