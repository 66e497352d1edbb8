"""Ids: 16 raw bytes inside, UUID text outside. A keyed id is computable by anybody who knows the key.

Test vectors for other languages are in docs/formats.md.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from atomlog.kernel.bounds import KEY_BYTES_MAX, NAME_PATTERN
from atomlog.kernel.errors import InvalidError, fail

ATOMLOG_NS: Final = bytes.fromhex("6f2b0c5e8a574d0e9b6b3c1f7a9e2d41")

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME: Final = re.compile(NAME_PATTERN)


@lru_cache(maxsize=8_192)  # one read writes the same id several times: in its row, its receipt, its slots
def format_id(raw: bytes) -> str:
    """Lower-case UUID text with hyphens."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse_id(text: object, path: str) -> bytes:
    """The raw id of a UUID text (either case); INVALID_INPUT naming `path` otherwise."""
    lowered = text.lower() if isinstance(text, str) else ""
    if not _UUID.fullmatch(lowered):
        raise invalid(path, f"{shown(text)} is no UUID; write it as 8-4-4-4-12 hexadecimal digits")
    raw = bytes.fromhex(lowered.replace("-", ""))
    if not any(raw):
        raise invalid(path, "the id of all zeros is reserved")
    return raw


def parse_name(text: object, path: str) -> str:
    """A space, policy, role or schema name; INVALID_INPUT naming `path` otherwise."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise invalid(path, f"{shown(text)} is no name; use {NAME_PATTERN}")
    return text


def parse_key(text: object, path: str) -> str:
    """A key in NFC: 1 to 512 bytes of UTF-8 without control characters; INVALID_INPUT otherwise."""
    if not isinstance(text, str):
        raise invalid(path, f"{shown(text)} is no text")
    if len(text) > 4 * KEY_BYTES_MAX:  # before normalising, which can take quadratic time
        raise invalid(path, f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(text)} characters")
    key = unicodedata.normalize("NFC", text)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise invalid(path, "the text holds a lone surrogate") from None
    if not 0 < size <= KEY_BYTES_MAX:
        raise invalid(path, f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {size}")
    if not key.isprintable() and any(unicodedata.category(character) == "Cc" for character in key):
        raise invalid(path, "the key holds a control character")
    return key


def keyed_id(space: str, policy: str, key: str) -> bytes:
    """The atom id of a key: UUIDv5(UUIDv5(ATOMLOG_NS, u32 len ‖ space ‖ u32 len ‖ policy), NFC(key))."""
    return _uuid5(_key_namespace(space, policy), unicodedata.normalize("NFC", key).encode())


@lru_cache(maxsize=1_024)
def _key_namespace(space: str, policy: str) -> bytes:
    space_raw, policy_raw = space.encode(), policy.encode()
    name = len(space_raw).to_bytes(4, "big") + space_raw + len(policy_raw).to_bytes(4, "big") + policy_raw
    return _uuid5(ATOMLOG_NS, name)


def uuid7(unix_us: int, random: bytes) -> bytes:
    """UUIDv7 (RFC 9562) of a time in microseconds and 10 random bytes; the microseconds go into rand_a."""
    milliseconds, rest = divmod(unix_us, 1_000)
    head = (milliseconds & 0xFFFF_FFFF_FFFF).to_bytes(6, "big")
    rand_a = (rest * 4_096 // 1_000) & 0x0FFF
    return head + (0x7000 | rand_a).to_bytes(2, "big") + bytes((0x80 | (random[0] & 0x3F),)) + random[1:8]


@lru_cache(maxsize=1_024)
def partition_of(space: str, partitions: int) -> int:
    """The partition of a space: first 8 bytes, big-endian, of SHA-256(space), modulo the partitions."""
    return int.from_bytes(hashlib.sha256(space.encode()).digest()[:8], "big") % partitions


HASH_VERSION: Final = 1  # of `partition_of`; part of every Claim


def invalid(path: str, message: str) -> InvalidError:
    """INVALID_INPUT about one part."""
    error = fail(
        "INVALID_INPUT",
        f"{path}: {message}",
        details=[{"path": path, "code": "INVALID_INPUT", "message": message}],
    )
    assert isinstance(error, InvalidError)
    return error


def _uuid5(namespace: bytes, name: bytes) -> bytes:
    digest = bytearray(hashlib.sha1(namespace + name, usedforsecurity=False).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x50
    digest[8] = (digest[8] & 0x3F) | 0x80
    return bytes(digest)


def shown(value: object) -> str:
    """A part of a request as a message shows it: ASCII, at most 80 characters, whatever it is."""
    if isinstance(value, str):
        text = ascii(value[:80])
        return text if len(text) <= 80 and len(value) <= 80 else f"{text[:77]}…"
    if isinstance(value, float) or value is None or (isinstance(value, int) and value.bit_length() <= 64):
        return repr(value)
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"a value of type {type(value).__name__}"
