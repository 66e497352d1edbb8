"""Sealing the content of a revision, and opening it again: unseal, decode, resolve a blob, verify.

Everything that reads values goes through `ContentOpener`; what only needs the clear part never needs a key. Byte
layouts are in docs/formats.md.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.ports import BlobStore
from atomlog.kernel.sealing import SealBroken, seal, unseal
from atomlog.kernel.text import BlobRef, blob_of, nfc_bytes, search_text, text_of, without_blob
from atomlog.schemas import codec
from atomlog.schemas.content import Origin, Provenance, SuppliedVector, decode_rest
from atomlog.schemas.quick import quick
from atomlog.schemas.revision import ATOM, REVISION, Clear, decode_clear, sealed_of
from atomlog.schemas.varint import WireError, read_bytes

REVISION_SCHEMA: Final = codec.load("RevisionV1").fingerprint
NO_MASTER_KEY: Final = "no master key"


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A whole revision. `value` is parsed JSON with the text of a blob put back; None when retired.

    `stored` is the canonical JSON of the value as it was sealed, None where a blob's text is not in it.
    """

    clear: Clear
    value: Any
    stored: bytes | None
    origins: tuple[Origin, ...]
    provenance: Provenance
    vectors: tuple[SuppliedVector, ...]

    @property
    def text(self) -> str | None:
        """The text as it was given."""
        return text_of(self.value)

    @property
    def text_bytes(self) -> bytes | None:
        """The text that origins and quotes address: UTF-8 in NFC."""
        text = self.text
        return None if text is None else nfc_bytes(text)

    @property
    def search_text(self) -> str | None:
        """What a search compares; None when there is nothing to embed."""
        return search_text(self.clear.schema, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A revision whose content cannot be read here, and why."""

    clear: Clear
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBlob:
    """The bytes to put into the blob store, and the reference that goes into the value."""

    reference: BlobRef
    sealed: bytes


def seal_content(key: bytes, nonce: bytes, content: bytes, clear: bytes) -> bytes:
    """Seal an encoded ContentV1 to the encoded clear part of its RevisionV1: `nonce ‖ ciphertext ‖ tag`."""
    return seal(key, nonce, content, REVISION_SCHEMA + clear)


def seal_blob(key: bytes | None, nonce: bytes, atom: bytes, text: str) -> SealedBlob:
    """A long text of an atom, sealed with the atom's key; bare when the atom has none."""
    plaintext = text.encode()
    digest = hashlib.sha256(plaintext).digest()
    sealed = plaintext if key is None else seal(key, nonce, plaintext, _blob_data(atom, digest))
    address = hashlib.sha256(sealed).digest()
    return SealedBlob(reference=BlobRef(address=address, sha256=digest, size_bytes=len(plaintext)), sealed=sealed)


class ContentOpener:
    """Opens revisions with the keys and blobs of this process."""

    def __init__(self, keys: KeyRing, blobs: BlobStore) -> None:
        self._keys = keys
        self._blobs = blobs

    async def open(self, revision: bytes) -> Opened | Sealed:
        """A revision from its RevisionV1 bytes; `Sealed` without a master key.

        Raises:
            KEY_UNAVAILABLE: the master key is another one than the store's.
            PURGED: the content was erased.
            CORRUPT: the bytes, a key page or a blob are not what was written, or never came.
        """
        try:
            clear, at = decode_clear(revision)
        except WireError as error:
            raise _corrupt(revision, str(error)) from None
        return await self.open_decoded(revision, clear, at)

    async def open_decoded(self, revision: bytes, clear: Clear, at: int) -> Opened | Sealed:
        """`open`, given what `decode_clear` returned for these bytes."""
        try:
            sealed = sealed_of(revision, at)
        except WireError as error:
            raise _corrupt(revision, str(error)) from None
        if clear.key_id is None:
            key = None
        elif not self._keys.can_unseal:
            return Sealed(clear=clear, reason=NO_MASTER_KEY)
        else:
            key = self._keys.key_now(clear.key_id) or await self._keys.wait_for_key(clear.key_id)
        try:
            content = sealed if key is None else unseal(key, sealed, REVISION_SCHEMA + revision[:at])
            opened = _opened(clear, content)
            blob = blob_of(opened.value)
            if blob is not None:
                value = without_blob(opened.value, await self._text(clear, blob, key))
                opened = replace(opened, value=value, stored=None)
        except ValueError as error:  # SealBroken, WireError, and what is no JSON, no reference, no UTF-8
            raise _corrupt(revision, str(error)) from None
        return opened

    async def _text(self, clear: Clear, blob: BlobRef, key: bytes | None) -> str:
        """The text of a blob, verified against its address, its seal, its size and its digest."""
        try:
            stored = await self._blobs.get(blob.address)
        except AtomlogError as error:
            if error.code != "NOT_FOUND":
                raise
            raise ValueError(f"its text is not in the blob store: {error.message}; restore it from a backup") from None
        plaintext = stored if key is None else unseal(key, stored, _blob_data(clear.atom_id, blob.sha256))
        if len(plaintext) != blob.size_bytes or hashlib.sha256(plaintext).digest() != blob.sha256:
            raise SealBroken(f"blob {blob.address.hex()} is another text than the one written")
        return plaintext.decode()


def _opened(clear: Clear, content: bytes) -> Opened:
    value, at = read_bytes(content, 0, "value")
    origins, provenance, vectors = decode_rest(content, at)
    return Opened(
        clear=clear,
        value=jsontext.loads(value),
        stored=value,
        origins=origins,
        provenance=provenance,
        vectors=vectors,
    )


def _blob_data(atom: bytes, sha256: bytes) -> bytes:
    """What a blob is sealed to: its atom, and the SHA-256 of its text."""
    return b"blob" + atom + sha256


def _corrupt(revision: bytes, message: str) -> AtomlogError:
    if len(revision) < REVISION.stop:
        return fail("CORRUPT", f"a revision: {message}")
    atom, identity = format_id(revision[ATOM]), format_id(revision[REVISION])
    return fail("CORRUPT", f"revision {identity} of atom {atom}: {message}")
