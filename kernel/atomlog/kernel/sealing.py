"""AES-256-GCM around content, blobs and key pages. The only module that imports `cryptography`.

Everything sealed has the form `nonce 12 ‖ ciphertext ‖ tag 16`. What stands in the clear beside it is its associated
data, so that neither can be changed or moved alone. Byte layouts are in docs/formats.md.
"""

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Files, KeyPage, Randomness

KEY_SIZE: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
SEAL_BYTES: Final = NONCE_BYTES + TAG_BYTES  # by how much sealing makes a plaintext longer
PAGE_KEYS: Final = 256
PAGE_BYTES: Final = PAGE_KEYS * KEY_SIZE
BITMAP_BYTES: Final = PAGE_KEYS // 8
MASTER_ID_BYTES: Final = 8

_CIPHERS_MAX: Final = 4_096
_MASTER_HEAD: Final = "atomlog-master-key-1"
_MASTER_FILE_BYTES_MAX: Final = 256


class SealBroken(ValueError):
    """The sealed bytes, their key or their associated data are not those of the sealing."""


@lru_cache(maxsize=_CIPHERS_MAX)
def _cipher(key: bytes) -> AESGCM:
    return AESGCM(key)


def forget_ciphers() -> None:
    """Drop every cipher that is kept for reuse, after keys were destroyed."""
    _cipher.cache_clear()


def seal(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """`nonce ‖ ciphertext ‖ tag` under a key of 32 bytes; the nonce, 12 random bytes, is used once.

    Its cipher is not kept: what seals is mostly the new key of a new atom.
    """
    return nonce + AESGCM(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """The plaintext; SealBroken when anything differs from what was sealed."""
    if len(sealed) < SEAL_BYTES:
        raise SealBroken(f"{len(sealed)} bytes are fewer than the {SEAL_BYTES} of an empty seal")
    try:
        return _cipher(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
    except InvalidTag:
        raise SealBroken("the authentication tag does not match") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterKey:
    """The key that wraps key pages. `id`, 8 bytes, names it in pages and messages and tells nothing of it."""

    key: bytes = field(repr=False)
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_SIZE:
            raise ValueError(f"a master key has {KEY_SIZE} bytes, not {len(self.key)}")
        object.__setattr__(self, "id", hashlib.sha256(b"atomlog-master" + self.key).digest()[:MASTER_ID_BYTES])

    def to_text(self) -> str:
        """The line of its file: secret."""
        return f"{_MASTER_HEAD} {self.key.hex()} {self.id.hex()}\n"

    @classmethod
    def from_text(cls, raw: bytes, path: str) -> "MasterKey":
        """Raises INVALID_INPUT naming `path` when the bytes are no master key file, or damaged."""
        words = raw.decode("ascii", "replace").split()
        if len(raw) > _MASTER_FILE_BYTES_MAX or len(words) != 3 or words[0] != _MASTER_HEAD:
            raise _not_master(path, f"not a master key file: one line, {_MASTER_HEAD!r}, key and id, is expected")
        try:
            master = cls(key=bytes.fromhex(words[1]))
        except ValueError:
            raise _not_master(path, f"the key is not {2 * KEY_SIZE} hexadecimal digits") from None
        if words[2].lower() != master.id.hex():
            raise _not_master(path, "the key is damaged: its id does not match; use an undamaged copy of this file")
        return master


def create_master_key(files: Files, randomness: Randomness, path: str) -> MasterKey:
    """Draw a master key and write its file, mode 0600, durable on return. Call it under the store's lock.

    Raises INVALID_INPUT when the file exists: without the key in it no content can be read.
    """
    if files.exists(path):
        raise _not_master(path, "the file exists and is not overwritten; name another one or use the key in it")
    master = MasterKey(key=randomness.token(KEY_SIZE))
    try:
        files.write_atomic(path, master.to_text().encode(), mode=0o600)
    except PermissionError as error:
        raise fail("STORE_READ_ONLY", f"{path}: {error.strerror}; make the directory writable") from error
    return master


def load_master_key(files: Files, path: str) -> MasterKey | None:
    """The master key in a file, None when the file is absent; INVALID_INPUT when it is no such file."""
    try:
        raw = files.read(path)
    except FileNotFoundError:
        return None
    except (PermissionError, IsADirectoryError) as error:
        raise _not_master(path, f"the master key cannot be read: {error.strerror}") from error
    return MasterKey.from_text(raw, path)


def wrap_page(master: MasterKey, nonce: bytes, page: KeyPage, keys: bytes) -> KeyPage:
    """`page` with `keys` (8,192 bytes) wrapped under the master key; its own `wrapped` is replaced."""
    if len(keys) != PAGE_BYTES:
        raise ValueError(f"a page has {PAGE_BYTES} bytes of keys, not {len(keys)}")
    named = replace(page, master_key_id=master.id)
    return replace(named, wrapped=seal(master.key, nonce, keys, _page_data(named)))


def unwrap_page(master: MasterKey, page: KeyPage) -> bytes:
    """The keys of a page, 8,192 bytes; SealBroken when the page or the master key is another."""
    if len(page.wrapped) != SEAL_BYTES + PAGE_BYTES:
        raise SealBroken(f"{len(page.wrapped)} wrapped bytes are not {SEAL_BYTES + PAGE_BYTES}")
    try:
        associated = _page_data(page)
    except OverflowError:
        raise SealBroken("a number of the page is out of range") from None
    return unseal(master.key, page.wrapped, associated)


def _page_data(page: KeyPage) -> bytes:
    return b"".join(
        (
            b"page",
            page.page,
            page.version.to_bytes(8, "big"),
            page.maker_partition.to_bytes(4, "big"),
            page.maker_term.to_bytes(8, "big"),
            page.maker_owner,
            page.master_key_id,
            page.destroyed,
        )
    )


def request_key(key: bytes, principal: str, idempotency_key: str) -> bytes:
    """32 bytes that name a request in its space: HMAC-SHA256(key, principal ‖ 0x00 ‖ idempotency key)."""
    if "\0" in principal:
        raise ValueError("a principal has no NUL")
    return hmac.digest(key, f"{principal}\0{idempotency_key}".encode(), "sha256")


def request_digest(key: bytes, canonical: bytes) -> bytes:
    """32 bytes that tell one request from another: HMAC-SHA256 over its canonical JSON."""
    return hmac.digest(key, canonical, "sha256")


def _not_master(path: str, message: str) -> Exception:
    return fail(
        "INVALID_INPUT", f"{path}: {message}", details=[{"path": path, "code": "INVALID_INPUT", "message": message}]
    )
