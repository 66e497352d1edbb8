"""Write requests: from bytes of JSON to a typed request, with everything that is checked without a store."""

import json
from typing import Any

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.checks import check_bounds, check_includes, check_vectors
from atomlog.kernel.jsontext import canonical, parse_json
from atomlog.kernel.requests import parse_write, parse_write_json
from atomlog.kernel.sealing import request_digest
from atomlog.kernel.vector_spaces import parse_vector_space
from tests.fuzz.engine import Target, agree

_ID = "0192f0c1-2b3a-7c4d-8e5f-0123456789ab"
_SPACES = {name: parse_vector_space(name, "space") for name in ("hashing/1/4/cosine", "mine/1/2/l2")}
BATCHES: tuple[dict[str, Any], ...] = (
    {
        "space": "notes",
        "idempotency_key": "k-1",
        "changes": [
            {
                "op": "create",
                "as": "@a",
                "key": "tea",
                "schema": "source",
                "policy": "p",
                "value": {"text": "Sencha 煎茶", "n": [1, 2.5, None]},
                "slots": [{"role": "about", "target": "@b", "order_key": "7"}, {"role": "r", "target": "key:x"}],
                "valid_time": {"from": "2026-01-01T00:00:00Z", "to": None},
                "vectors": {"hashing/1/4/cosine": [1, 0, 0.5, -1], "mine/1/2/l2": [0, 0]},
            },
            {"op": "create", "as": "@b", "schema": "collection", "value": {"title": "Tea"}, "slots": None},
        ],
        "preconditions": [
            {"type": "head", "atom": _ID, "revision": _ID},
            {"type": "absent", "atom": "key:other"},
            {"type": "unchanged", "atom": _ID, "since": 7},
            {"type": "range", "role": "about", "target": "key:tea", "unchanged_since": -1},
            {"type": "scope", "schema": "source", "unchanged_since": 0},
        ],
        "session": None,
    },
    {
        "space": "notes",
        "idempotency_key": "k-2",
        "changes": [
            {
                "op": "revise",
                "atom": {"key": "tea", "space": None, "policy": "p"},
                "expected": _ID,
                "value": "whole text",
                "origins": [{"source": _ID, "revision": _ID, "start": 0, "end": 5}],
                "provenance": {"kind": "extract", "activity": "a", "receipts": [_ID], "model": "m"},
            },
            {"op": "retire", "atom": f"{_ID}#a1", "expected": _ID},
        ],
    },
)


def write(data: bytes) -> None:
    request = parse_write_json(data)
    agree(len(request.changes) > 0 and 0 < len(request.idempotency_key.encode()) <= 512, "an empty request passes")
    agree(canonical(parse_json(request.canonical), "$") == request.canonical, "the digest's form is not canonical")
    found = [*check_bounds(request, Bounds()), *check_vectors(request, _SPACES), *check_includes(request)]
    for detail in found:
        str(detail["path"]).encode()
        str(detail["message"]).encode()
    request_digest(bytes(32), request.canonical)
    again = parse_write(json.loads(data))
    agree(again == request, "the same batch reads as another when it comes as a mapping")


def _seeds() -> list[bytes]:
    return [json.dumps(batch, ensure_ascii=False).encode() for batch in BATCHES]


_WORDS = tuple(
    word.encode()
    for word in (
        *('"op": ', '"create"', '"revise"', '"retire"', '"as": "@a",', '"@a"', '"key:a"', '"slots": [', '"value": '),
        *('"mode": "include"', '"revision": "@a"', '"blob": {}', '"expected": ', '"required": true', '"policy": "x",'),
        *("1e999", "NaN", "Infinity", '"\\ud800"', "9" * 400, "-0.0", "1e22", '{"bytes": 1}', '"text": ', "[[[[[[[["),
    )
)
TARGETS = [
    Target(
        name="write",
        json=True,
        decode=write,
        seeds=_seeds,
        codes=frozenset({"INVALID_INPUT", "BOUND_EXCEEDED", "ATOMICITY_UNAVAILABLE", "CONSISTENCY_UNAVAILABLE"}),
        words=_WORDS,
        executions=10_000,
        lines_base=6_000,
        bytes_per_byte=2_500,
    ),
]
