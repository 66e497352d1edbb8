"""What a read is asked by, and what it gave out earlier: selectors, continuations, kept cursors and receipts."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, cast

from atomlog.kernel.jsontext import dumps, parse_json
from atomlog.kernel.ports import Clock
from atomlog.projections.read.cursors import Continuations, Cursor, cursor_from_bytes
from atomlog.projections.read.journal import Journal, merge_inputs
from atomlog.projections.read.receipts import (
    At,
    IndexState,
    ReadReceipt,
    ReceiptRow,
    receipt_from_bytes,
    score_bits,
    score_of,
)
from atomlog.projections.read.selectors import parse_selector, selector_dict
from atomlog.schemas.revision import ReadRange, ReadScope
from tests.fuzz.engine import Broken, Target, agree

_ID = "0192f0c1-2b3a-7c4d-8e5f-0123456789ab"
_SECRET = bytes(range(32))


def selector(data: bytes) -> None:
    found = parse_selector(parse_json(data, checked=False))
    agree(parse_selector(json.loads(dumps(selector_dict(found)))) == found, "a selector changes when it is written")


class _Journal:
    """Keeps one cursor, under every id."""

    secrets: Mapping[int, bytes] = {1: _SECRET}

    async def kept(self, kept_id: bytes) -> None:
        return None


class _Clock:
    def now_us(self) -> int:
        return 1_700_000_000_000_000


_CONTINUATIONS = Continuations(journal=cast(Journal, _Journal()), clock=cast(Clock, _Clock()), ttl_ms=1_000)


def continuation(data: bytes) -> None:
    """Nothing that the store did not sign gets as far as a look-up."""
    text = data.decode("utf-8", "surrogateescape")
    taken = _CONTINUATIONS.take(text, asked=b"", principal="local", permission_generation=0)
    try:
        taken.send(None)
    except StopIteration:
        raise Broken("a cursor that is not kept was found") from None


def _signed(data: bytes) -> bytes:
    """The text of whatever head stands in the bytes, signed as the store signs."""
    head = b"\1" + data[1:22].ljust(21, b"\2")
    mac = hmac.new(_SECRET, b"atomlog continuation" + head, hashlib.sha256).digest()[:20]
    return base64.urlsafe_b64encode(head + mac)


def _tokens() -> list[bytes]:
    head = b"\1" + bytes(range(16)) + (1_800_000_000).to_bytes(5, "big")
    return [_signed(base64.urlsafe_b64encode(head)), base64.urlsafe_b64encode(bytes(42)), b"AAAA", b""]


def cursor(data: bytes) -> None:
    found = cursor_from_bytes(data)
    agree(cursor_from_bytes(found.to_bytes()) == found, "a cursor changes when it is written")


def receipt(data: bytes) -> None:
    found = receipt_from_bytes(data)
    agree(receipt_from_bytes(found.to_bytes()) == found, "a receipt changes when it is written")
    merge_inputs([found, found])
    for row in found.rows:
        if row.score_bits is not None:
            score_of(row.score_bits)


def score(data: bytes) -> None:
    bits = data[:4].ljust(4, b"\0")
    if bits[0] & 0x7F == 0x7F and bits[1] & 0x80:
        return  # infinities and NaN are never given out
    number = score_of(bits)
    agree(score_bits(number) == (bits if bits != b"\x80\0\0\0" else bytes(4)), "a score is shown as another number")


def _cursors() -> list[bytes]:
    found = Cursor(
        asked=bytes(range(32)),
        mode="version_pinned",
        positions={0: 7, 1: -1},
        chains={0: bytes(16)},
        generations={"ids": "g000001"},
        principal="local",
        permission_generation=0,
        state={"after": "00ff", "n": 3},
        continues=bytes(range(16)),
    )
    return [found.to_bytes()]


def _receipts() -> list[bytes]:
    row = ReceiptRow(
        handle="a1",
        atom=bytes(range(16)),
        revision=bytes(range(1, 17)),
        slots=(None, bytes(16)),
        score_bits=score_bits(0.75),
        reason={"encoder": "hashing/1/512/cosine"},
        status="current",
        sealed=False,
        spans=((0, 4),),
    )
    found = ReadReceipt(
        receipt=bytes(range(16)),
        log_id=bytes(range(16)),
        mode="snapshot",
        positions={0: At(position=7, chain=bytes(16))},
        indexes={"ids": IndexState(positions={0: 7}, lag={0: 0}, generation="g000001")},
        rows=(row,),
        ranges=(ReadRange(role="*", target=bytes(range(16)), observed=((0, 7),), complete=True),),
        scopes=(ReadScope(selector_digest=bytes(32), observed=((0, 7),), empty=False),),
        body_sha256=bytes(32),
        recorded_at_us=1_700_000_000_000_000,
        principal="local",
        permission_generation=0,
        budget={"atoms": 1},
        truncations=({"what": "atoms"},),
        encoders=("hashing/1/512/cosine",),
        scoring="cosine-max-v1",
        scoring_digest=bytes(32),
        continues=bytes(range(2, 18)),
    )
    return [found.to_bytes()]


_SELECTORS: tuple[dict[str, Any], ...] = (
    {"type": "ids", "ids": [_ID, "key:a", f"{_ID}#a1", {"key": "k", "policy": "p"}]},
    {"type": "ids", "ids": [_ID], "revision": _ID},
    {"type": "history", "atom": "key:a"},
    {"type": "relations", "target": "key:a", "role": "about"},
    {"type": "slots", "atom": _ID},
    {"type": "members", "group": "key:g", "and": ["key:h"], "or": "key:i", "not": [_ID], "include_retired": True},
    {"type": "groups", "member": "key:a"},
    {
        "type": "recall",
        "text": "POL-358 don't",
        "context": "tea",
        "reasoning": "why",
        "vectors": {"hashing/1/512/cosine": [0.5, 1, -2e-3]},
        "scope": {
            "schema": ["source"],
            "policy": "p",
            "space": ["notes", "more"],
            "groups": {"and": ["key:g"], "not": ["key:h"]},
            "time": {"from": "2026-01-01T00:00:00Z", "to": "2027-01-01T00:00:00+09:00"},
            "agent": "key:me",
        },
    },
)
_WORDS = tuple(
    word.encode()
    for word in (
        *('"type": "', "recall", "members", "ids", '"scope": ', '"groups": ', '"and": ', '"time": ', '"from": '),
        *('"vectors": ', "1e39", "3.5e38", "1e-46", "NaN", '"key:', '"\\ud800"', "null", "[]", "{}", "true", "  "),
    )
)
REFUSED = frozenset({"INVALID_INPUT", "BOUND_EXCEEDED"})
CORRUPT = frozenset({"CORRUPT"})
TARGETS = [
    Target(
        name="selector",
        json=True,
        decode=selector,
        seeds=lambda: [json.dumps(selector).encode() for selector in _SELECTORS],
        codes=REFUSED,
        words=_WORDS,
        bytes_per_byte=1_200,
        lines_base=5_000,
    ),
    Target(
        name="continuation",
        decode=continuation,
        seeds=_tokens,
        codes=frozenset({"CURSOR_EXPIRED", "INVALID_INPUT"}),
        mended=_signed,
        executions=15_000,
    ),
    Target(name="cursor", json=True, decode=cursor, seeds=_cursors, codes=CORRUPT, bytes_per_byte=800),
    Target(name="receipt", json=True, decode=receipt, seeds=_receipts, codes=CORRUPT, bytes_per_byte=800),
    Target(name="score", decode=score, seeds=lambda: [score_bits(x) for x in (0.1, 1.0, 3.4e38, 1e-45)]),
]
