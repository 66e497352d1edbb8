"""Revisions are opened with the right key and blobs only, whole, and any change of a byte is noticed."""

import asyncio
import hashlib
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel import jsontext
from atomlog.kernel.blobs import DirectoryBlobStore, MemoryBlobStore
from atomlog.kernel.content import REVISION_SCHEMA, ContentOpener, Opened, Sealed, seal_blob, seal_content
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.ports import BlobStore
from atomlog.kernel.sealing import MasterKey, request_key, seal, unseal
from atomlog.kernel.system import SystemFiles
from atomlog.kernel.text import BlobRef, with_blob
from atomlog.schemas import codec
from atomlog.schemas.content import Content, Origin, Provenance, SuppliedVector, encode_content
from atomlog.schemas.revision import KEY, Clear, Slot, ValidTime, encode_clear, join_sealed
from tests.support.sealed import HOSTILE_TEXTS, MASTER, OTHER_MASTER, OWNER, InlineWorkers, SleptClock, bitmap, ring_of

NONCE = b"nonce of 12."
ATOM = b"A" * 16
STORE = MemoryKeyStore()


def _two_keys() -> list[tuple[bytes, bytes]]:
    async def work() -> list[tuple[bytes, bytes]]:
        allocator = KeyAllocator(ring_of(STORE), 0)
        await allocator.start(1, OWNER, {}, fresh_page=False)
        await allocator.reserve(2)
        taken = [allocator.take() for _ in range(2)]
        await allocator.close()
        return taken

    return asyncio.run(work())


(KEY_ID, CONTENT_KEY), (OTHER_KEY_ID, OTHER_KEY) = _two_keys()
CLEAR = Clear(
    atom_id=ATOM,
    revision_id=b"R" * 16,
    previous=b"P" * 16,
    key_id=KEY_ID,
    recorded_at_us=1_700_000_000_000_000,
    retired=False,
    schema="source",
    policy="notes",
    valid_time=ValidTime(from_us=5, to_us=None),
    slots=(Slot(role="about", target=b"T" * 16, order_key=b"k"),),
)
ORIGINS = (Origin(source=b"S" * 16, revision=b"V" * 16, start=0, end=9, sha256=hashlib.sha256(b"Green tea").digest()),)
PROVENANCE = Provenance(kind="source", activity="reading", receipts=(b"E" * 16,), model="m", prompt_digest="d")
VECTORS = (SuppliedVector(space="supplied.x/1/2/l2", data=bytes(8)),)


def revision_of(value: Any, clear: Clear = CLEAR, key: bytes | None = CONTENT_KEY) -> bytes:
    head = encode_clear(clear)
    content = encode_content(
        Content(value=jsontext.canonical(value), origins=ORIGINS, provenance=PROVENANCE, vectors=VECTORS)
    )
    return join_sealed(head, content if key is None else seal_content(key, NONCE, content, head))


BARE = replace(CLEAR, key_id=None)
REVISION = revision_of({"text": "Green tea, 80 °C"})


def opener(blobs: BlobStore | None = None, ring: KeyRing | None = None) -> ContentOpener:
    return ContentOpener(ring or ring_of(STORE, key_wait_ms=0), blobs or MemoryBlobStore())


def opened(revision: bytes, blobs: BlobStore | None = None, ring: KeyRing | None = None) -> Opened:
    found = asyncio.run(opener(blobs, ring).open(revision))
    assert isinstance(found, Opened)
    return found


def error_of(revision: bytes, blobs: BlobStore | None = None, ring: KeyRing | None = None) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        asyncio.run(opener(blobs, ring).open(revision))
    return caught.value


def put(blobs: BlobStore, text: str, key: bytes | None = CONTENT_KEY, atom: bytes = ATOM) -> BlobRef:
    blob = seal_blob(key, NONCE, atom, text)
    assert asyncio.run(blobs.put(blob.sealed)) == blob.reference.address
    return blob.reference


def test_a_revision_is_opened_whole() -> None:
    found = opened(REVISION)
    assert found.clear == CLEAR
    assert found.value == {"text": "Green tea, 80 °C"}
    assert (found.origins, found.provenance, found.vectors) == (ORIGINS, PROVENANCE, VECTORS)
    assert found.text == found.search_text == "Green tea, 80 °C"
    assert found.text_bytes == "Green tea, 80 °C".encode()


def test_an_unsealed_revision_needs_no_key() -> None:
    revision = revision_of({"text": "open"}, BARE, None)
    ring = ring_of(MemoryKeyStore(), master=None)
    assert opened(revision, ring=ring).value == {"text": "open"}


def test_a_retired_revision_has_no_value() -> None:
    found = opened(revision_of(None, replace(CLEAR, retired=True)))
    assert found.value is None
    assert (found.text, found.text_bytes, found.search_text) == (None, None, None)


def test_the_seal_is_over_the_schema_and_the_clear_part() -> None:
    clear = encode_clear(CLEAR)
    sealed = seal_content(CONTENT_KEY, NONCE, b"content", clear)
    assert sealed[:12] == NONCE
    assert codec.load("RevisionV1").fingerprint == REVISION_SCHEMA
    assert unseal(CONTENT_KEY, sealed, codec.load("RevisionV1").fingerprint + clear) == b"content"


def test_the_vectors_in_the_documentation_are_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    vectors = dict(re.findall(r"^\| ([^|]+) \| `([0-9a-f]+)` \|$", page, re.MULTILINE))
    key, nonce, atom = bytes(range(32)), bytes(range(12)), b"\x01" * 16
    clear = Clear(
        atom_id=atom,
        revision_id=b"\x02" * 16,
        previous=None,
        key_id=b"\x03" * 8 + b"\x04",
        recorded_at_us=1_700_000_000_000_000,
        retired=False,
        schema="source",
        policy="notes",
    )
    content = encode_content(Content(value=b'"tea"', origins=(), provenance=Provenance(kind="source")))
    blob = seal_blob(key, nonce, atom, "tea")
    made = {
        "fingerprint of RevisionV1": REVISION_SCHEMA,
        "ContentV1": content,
        "sealed content": seal_content(key, nonce, content, encode_clear(clear)),
        "blob of the text `tea`": blob.sealed,
        "its address": blob.reference.address,
        "id of the key as a master key": MasterKey(key=key).id,
        "`request_key` of principal `local`, idempotency key `k-1`": request_key(key, "local", "k-1"),
    }
    assert {name: vectors.get(name) for name in made} == {name: raw.hex() for name, raw in made.items()}


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_any_text_comes_back_as_it_was_given(text: str) -> None:
    blobs = MemoryBlobStore()
    for value in (text, {"text": text}, {"text": text, "plain": True}):
        assert opened(revision_of(value)).value == value
        found = opened(revision_of(with_blob(value, put(blobs, text))), blobs)
        assert found.value == value
        assert found.text == text
        assert found.text_bytes == unicodedata.normalize("NFC", text).encode()


def test_no_byte_of_a_revision_can_be_changed() -> None:
    """The clear part is authenticated, not hidden: every bit of it and of the seal is flipped."""
    ring = ring_of(STORE, key_wait_ms=0)
    codes: dict[str, int] = {}
    for at in range(len(REVISION)):
        for bit in range(8):
            broken = bytearray(REVISION)
            broken[at] ^= 1 << bit
            code = error_of(bytes(broken), ring=ring).code
            codes[code] = codes.get(code, 0) + 1
    assert codes == {"CORRUPT": 8 * len(REVISION)}


def test_a_revision_that_is_cut_off_or_longer_is_corrupt() -> None:
    for size in range(len(REVISION)):
        assert error_of(REVISION[:size]).code == "CORRUPT"
    assert error_of(REVISION + b"\0").code == "CORRUPT"


def test_the_content_of_another_revision_does_not_fit() -> None:
    other = replace(CLEAR, revision_id=b"Q" * 16)
    content = encode_content(Content(value=b'"x"', origins=(), provenance=PROVENANCE))
    moved = join_sealed(encode_clear(CLEAR), seal_content(CONTENT_KEY, NONCE, content, encode_clear(other)))
    error = error_of(moved)
    assert error.code == "CORRUPT"
    assert "52525252-5252-5252-5252-525252525252" in error.message


def test_the_key_of_another_atom_does_not_open() -> None:
    assert error_of(revision_of("x", replace(CLEAR, key_id=OTHER_KEY_ID))).code == "CORRUPT"


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x02x" + bytes(7), b"\x04{]" + bytes(7), b"\xff" * 40])
@pytest.mark.parametrize("key", [None, CONTENT_KEY])
def test_what_is_no_content_is_corrupt(content: bytes, key: bytes | None) -> None:
    clear = encode_clear(BARE if key is None else CLEAR)
    revision = join_sealed(clear, content if key is None else seal_content(key, NONCE, content, clear))
    assert error_of(revision).code == "CORRUPT"


# -- keys


def test_without_a_master_key_a_revision_stays_sealed() -> None:
    found = asyncio.run(opener(ring=ring_of(STORE, master=None)).open(REVISION))
    assert found == Sealed(clear=CLEAR, reason="no master key")


def test_with_another_master_key_both_are_named() -> None:
    error = error_of(REVISION, ring=ring_of(STORE, master=OTHER_MASTER))
    assert error.code == "KEY_UNAVAILABLE"
    assert MASTER.id.hex() in error.message
    assert OTHER_MASTER.id.hex() in error.message


def test_a_key_that_is_not_here_yet_is_waited_for() -> None:
    store, clock = MemoryKeyStore(), SleptClock()

    async def arrive(seconds: float) -> None:
        await store.put(list(STORE._pages.values()))

    clock.sleep = arrive  # type: ignore[method-assign]
    assert opened(REVISION, ring=ring_of(store, clock=clock, key_wait_ms=50)).text == "Green tea, 80 °C"


def test_a_key_that_never_comes_is_corrupt() -> None:
    error = error_of(REVISION, ring=ring_of(MemoryKeyStore(), key_wait_ms=50))
    assert error.code == "CORRUPT"
    assert KEY_ID[:8].hex() in error.message


def test_a_revision_whose_key_is_destroyed_is_purged() -> None:
    async def work() -> None:
        store = MemoryKeyStore()
        await store.put(list(STORE._pages.values()))
        ring = ring_of(store)
        both = [REVISION, revision_of("stays", replace(CLEAR, key_id=OTHER_KEY_ID), OTHER_KEY)]
        for revision in both:
            assert isinstance(await opener(ring=ring).open(revision), Opened)
        allocator = KeyAllocator(ring, 0)
        await allocator.start(2, OWNER, {KEY_ID[:8]: bitmap(0, 1)}, fresh_page=False)
        await allocator.destroy({KEY_ID[:8]: bitmap(KEY_ID[8])})
        for reader in (ring, ring_of(store)):
            with pytest.raises(AtomlogError, match="PURGED"):
                await opener(ring=reader).open(both[0])
            assert isinstance(await opener(ring=reader).open(both[1]), Opened)

    asyncio.run(work())


def test_a_revision_names_its_key_where_it_is_read() -> None:
    assert REVISION[KEY] == KEY_ID


# -- blobs

LONG = "長い text " * 9_000


def test_a_long_text_is_sealed_to_its_atom() -> None:
    blob = seal_blob(CONTENT_KEY, NONCE, ATOM, LONG)
    assert blob.reference.address == hashlib.sha256(blob.sealed).digest()
    assert blob.reference.sha256 == hashlib.sha256(LONG.encode()).digest()
    assert blob.reference.size_bytes == len(LONG.encode())
    assert unseal(CONTENT_KEY, blob.sealed, b"blob" + ATOM + blob.reference.sha256) == LONG.encode()
    assert LONG[:40].encode() not in blob.sealed


def test_a_long_text_of_an_unsealed_atom_is_bare() -> None:
    blobs = MemoryBlobStore()
    reference = put(blobs, LONG, key=None)
    assert reference.address == reference.sha256
    assert opened(revision_of(with_blob(LONG, reference), BARE, None), blobs).value == LONG


def test_a_blob_that_is_absent_is_corrupt() -> None:
    reference = seal_blob(CONTENT_KEY, NONCE, ATOM, LONG).reference
    error = error_of(revision_of(with_blob(LONG, reference)))
    assert error.code == "CORRUPT"
    assert reference.address.hex() in error.message


@pytest.mark.parametrize("at", [0, 11, 12, 5_000, -17, -1])
def test_a_blob_with_a_flipped_bit_is_corrupt(tmp_path: Path, at: int) -> None:
    blobs = DirectoryBlobStore(SystemFiles(), InlineWorkers(), str(tmp_path / "blobs"))
    reference = put(blobs, LONG)
    revision = revision_of(with_blob(LONG, reference))
    assert opened(revision, blobs).value == LONG
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    error = error_of(revision, blobs)
    assert error.code == "CORRUPT"
    assert str(path) in error.message
    path.write_bytes(raw[:at])
    assert error_of(revision, blobs).code == "CORRUPT"


class LyingBlobs(MemoryBlobStore):
    """Gives whatever it was told to, for any address."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    async def get(self, address: bytes) -> bytes:
        return self.data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        LONG.encode(),
        seal_blob(OTHER_KEY, NONCE, ATOM, LONG).sealed,
        seal_blob(CONTENT_KEY, NONCE, b"B" * 16, LONG).sealed,
        seal_blob(CONTENT_KEY, NONCE, ATOM, LONG + "x").sealed,
        seal(CONTENT_KEY, NONCE, b"other", b"blob" + ATOM + hashlib.sha256(LONG.encode()).digest()),
    ],
    ids=["nothing", "bare", "other key", "other atom", "other text", "other text under its name"],
)
def test_only_the_text_that_was_written_is_put_back(data: bytes) -> None:
    reference = seal_blob(CONTENT_KEY, NONCE, ATOM, LONG).reference
    assert error_of(revision_of(with_blob(LONG, reference)), LyingBlobs(data)).code == "CORRUPT"


@pytest.mark.parametrize("change", [{"size_bytes": 5}, {"sha256": bytes(32)}])
def test_a_reference_must_agree_with_its_text(change: dict[str, Any]) -> None:
    blobs = MemoryBlobStore()
    reference = replace(put(blobs, LONG, key=None), **change)
    assert error_of(revision_of(with_blob(LONG, reference), BARE, None), blobs).code == "CORRUPT"


def test_a_blob_that_is_no_utf_8_is_corrupt() -> None:
    raw = b"\xff\xfe"
    digest = hashlib.sha256(raw).digest()
    reference = BlobRef(address=digest, sha256=digest, size_bytes=2)
    error = error_of(revision_of(with_blob("x", reference), BARE, None), LyingBlobs(raw))
    assert error.code == "CORRUPT"


def test_a_reference_that_is_not_as_written_is_corrupt() -> None:
    assert error_of(revision_of({"blob": {"address": "x"}})).code == "CORRUPT"


def test_an_unavailable_blob_store_is_not_called_corrupt() -> None:
    class Down(MemoryBlobStore):
        async def get(self, address: bytes) -> bytes:
            raise OSError("down")

    reference = seal_blob(CONTENT_KEY, NONCE, ATOM, LONG).reference
    with pytest.raises(OSError, match="down"):
        asyncio.run(opener(Down()).open(revision_of(with_blob(LONG, reference))))
