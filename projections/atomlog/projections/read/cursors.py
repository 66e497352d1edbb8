"""Continuations: a short text that names a cursor kept by the store, and proves that the store gave it out.

The text is base64url of `key number u8 ‖ cursor id 16 ‖ expiry in seconds u40 ‖ HMAC-SHA-256 cut to 20`, 42 bytes,
so that no bit of it is spare. What the cursor is bound to stands in the kept row: what was asked, the positions, the
builds of the indexes, the principal and the permission generation. A cursor is never changed: the same continuation
gives the same page again.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, invalid, parse_id, shown
from atomlog.kernel.jsontext import dumps, loads
from atomlog.kernel.ports import Clock
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.receipts import json_object, positions_dict, positions_of, whole_number
from atomlog.projections.read.shelf import Kept

HANDLE_BYTES: Final = 42
MAC_BYTES: Final = 20
_LABEL: Final = b"atomlog continuation"
SECOND_US: Final = 1_000_000
EXPIRY_SECONDS_MAX: Final = (1 << 40) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a read goes on. `asked` is the keyed digest of the selector, `state` the source's own place."""

    asked: bytes
    mode: str
    positions: Mapping[int, int]
    chains: Mapping[int, bytes]
    generations: Mapping[str, str]
    principal: str
    permission_generation: int
    state: Mapping[str, Any]
    continues: bytes

    def to_bytes(self) -> bytes:
        return dumps(
            {
                "asked": self.asked.hex(),
                "mode": self.mode,
                "positions": positions_dict(self.positions),
                "chains": {str(partition): chain.hex() for partition, chain in self.chains.items()},
                "generations": dict(self.generations),
                "principal": self.principal,
                "permission_generation": self.permission_generation,
                "state": dict(self.state),
                "continues": format_id(self.continues),
            }
        )


def cursor_from_bytes(raw: bytes) -> Cursor:
    """CORRUPT when the bytes are no cursor of this version."""
    try:
        return _cursor(loads(raw))
    except (AtomlogError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise fail("CORRUPT", f"a kept cursor is not readable: {shown(str(error))}; start the read again") from None


def _cursor(value: Mapping[str, Any]) -> Cursor:
    return Cursor(
        asked=bytes.fromhex(value["asked"]),
        mode=value["mode"],
        positions=positions_of(value["positions"]),
        chains={int(partition): bytes.fromhex(chain) for partition, chain in value["chains"].items()},
        generations=json_object(value["generations"]),
        principal=value["principal"],
        permission_generation=whole_number(value["permission_generation"]),
        state=json_object(value["state"]),
        continues=parse_id(value["continues"], "continues"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuations:
    """Gives out continuations and takes them back."""

    journal: Journal
    clock: Clock
    ttl_ms: int

    def expiry_us(self) -> int:
        """When what is kept from now on expires; never, for a ttl beyond what the text can hold."""
        return min(self.clock.now_us() + self.ttl_ms * 1_000, EXPIRY_SECONDS_MAX * SECOND_US)

    def give(self, cursor: Cursor, expires_at_us: int) -> tuple[str, Kept]:
        """The continuation of a cursor, and the row that must be kept before it is given out."""
        cursor_id = self.journal.new_id()
        number, secret = max(self.journal.secrets.items())
        head = bytes((number,)) + cursor_id + (max(expires_at_us, 0) // SECOND_US).to_bytes(5, "big")
        text = base64.urlsafe_b64encode(head + _mac(secret, head)).decode()
        return text, Kept(id=cursor_id, expires_at_us=expires_at_us, body=cursor.to_bytes())

    async def take(self, text: str, *, asked: bytes, principal: str, permission_generation: int) -> Cursor:
        """The cursor of a continuation of this very read; CURSOR_EXPIRED for anything else."""
        cursor_id, expires_at_us = self._verified(text)
        if self.clock.now_us() >= expires_at_us:
            raise expired("it is older than the store keeps them")
        kept = await self.journal.kept(cursor_id)
        if kept is None:
            raise expired("the store does not keep it any more")
        cursor = cursor_from_bytes(kept.body)
        if cursor.asked != asked:
            raise expired("it belongs to another read; give the same selector as for its first page")
        if (cursor.principal, cursor.permission_generation) != (principal, permission_generation):
            raise expired("it was given to another reader, or rights have changed since")
        return cursor

    def _verified(self, text: object) -> tuple[bytes, int]:
        """(cursor id, expiry) of a text that this store gave out."""
        if not isinstance(text, str):
            raise invalid("continuation", f"{shown(text)} is no text")
        try:
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            raise expired("it is no continuation") from None
        if len(raw) != HANDLE_BYTES or base64.urlsafe_b64encode(raw).decode() != text:
            raise expired("it is no continuation")
        head, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
        secret = self.journal.secrets.get(head[0])
        if secret is None or not hmac.compare_digest(mac, _mac(secret, head)):
            raise expired("this store did not give it out, or another node of it did, which alone can go on")
        return head[1:17], int.from_bytes(head[17:], "big") * SECOND_US


def expired(why: str) -> AtomlogError:
    return fail("CURSOR_EXPIRED", f"the continuation cannot be used: {why}; start the read again")


def asked_digest(journal: Journal, selector: Mapping[str, Any]) -> bytes:
    """A keyed digest of a selector: equal for equal ones, and no way to guess a query's text from it."""
    secret = journal.secrets[min(journal.secrets)]
    return hmac.new(secret, b"atomlog selector" + dumps(selector), hashlib.sha256).digest()


def _mac(secret: bytes, head: bytes) -> bytes:
    return hmac.new(secret, _LABEL + head, hashlib.sha256).digest()[:MAC_BYTES]
