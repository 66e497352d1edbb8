"""Makes `golden/history.json`: the records of a small history, and what must be answered about it.

    python tests/schemas/make_golden_history.py          writes it where it is missing; fails when it would change

Like `make_golden.py` it shares no code with atomlog. The answers are not computed: they are written down here, by
hand, from the story. Atoms and revisions have names; b2 is the second revision of b.

    0  a Claim
    1  g is a group, a and b are sources; m has a in g at "b", n has b in g at "a"
    2  a is revised, and is about b
    3  a record of a stranger, which counts for nobody
    4  m is retired; o has a in g, with no order key
    5  b is retired
    6  b is revised, so active again, and cites the first revision of a
"""

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

try:
    from tests.schemas.make_golden import AVSC, GOLDEN, canonical_form, encoded, packed, rabin
except ModuleNotFoundError:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.schemas.make_golden import AVSC, GOLDEN, canonical_form, encoded, packed, rabin

PATH = GOLDEN / "history.json"
LOG_ID = bytes(range(16))
OWNER, STRANGER = b"\xa1" * 16, b"\xb2" * 16
START_US = 1_700_000_000_000_000
ZERO16 = bytes(16)
ATOMS = "gabmno"

MEMBER = "membership"
STORY: dict[int, list[dict[str, Any]]] = {
    1: [
        {"atom": "g", "schema": "collection"},
        {"atom": "a", "schema": "source"},
        {"atom": "b", "schema": "source"},
        {"atom": "m", "schema": MEMBER, "slots": [("group", "g", "", ""), ("member", "a", "", "b")]},
        {"atom": "n", "schema": MEMBER, "slots": [("group", "g", "", ""), ("member", "b", "", "a")]},
    ],
    2: [{"atom": "a", "schema": "source", "slots": [("about", "b", "", "")]}],
    4: [
        {"atom": "m", "schema": MEMBER, "retired": True, "slots": [("group", "g", "", ""), ("member", "a", "", "b")]},
        {"atom": "o", "schema": MEMBER, "slots": [("group", "g", "", ""), ("member", "a", "", "")]},
    ],
    5: [{"atom": "b", "schema": "source", "retired": True}],
    6: [{"atom": "b", "schema": "source", "slots": [("cites", "a", "a1", "")]}],
}
# Of each position from −1 to 6.
BEFORE_A2, AFTER_A2 = "g1 a1 b1 m1 n1", "g1 a2 b1 m1 n1"
ANSWERS: dict[str, Any] = {
    "heads": ["", "", BEFORE_A2, AFTER_A2, AFTER_A2, "g1 a2 b1 m2 n1 o1", "g1 a2 b2 m2 n1 o1", "g1 a2 b3 m2 n1 o1"],
    "members of g": ["", "", "b a", "b a", "b a", "a b", "a", "a b"],
    "members of g, retired ones too": ["", "", "b a", "b a", "b a", "a b", "a b", "a b"],
    "relations to b": ["", "", "n:member", *["a:about n:member"] * 5],
    "relations to a as member": ["", "", "m", "m", "m", "o", "o", "o"],
    "relations to a as cites": ["", "", "", "", "", "", "", "b"],
    "groups of a": ["", "", "g", "g", "g", "g", "g", "g"],
    "history of b": ["", "", "b1", "b1", "b1", "b1", "b1 b2", "b1 b2 b3"],
    "last change of b as about": [-1, -1, -1, 2, 2, 2, 2, 2],
    "last change of a as member": [-1, -1, 1, 1, 1, 4, 4, 4],
}


def atom_id(name: str) -> bytes:
    return hashlib.sha256(b"atom " + name.encode()).digest()[:16]


def revision_id(name: str) -> bytes:
    """Of "a1"; empty = none."""
    return hashlib.sha256(b"revision " + name.encode()).digest()[:16] if name else ZERO16


def time8(us: int) -> bytes:
    return (us + (1 << 63)).to_bytes(8, "big")


def schema(name: str) -> Any:
    return json.loads((AVSC / f"{name}.avsc").read_text("utf-8"))


def revision(change: dict[str, Any], number: int, us: int) -> bytes:
    content: dict[str, Any] = {
        "value": b"null" if change.get("retired") else b'{"text":"x"}',
        "origins": [],
        "provenance": {"kind": "source", "activity": "", "receipts": [], "model": "", "prompt_digest": ""},
        "vectors": [],
    }
    slots = [
        {
            "role": role,
            "target": atom_id(target),
            "at": revision_id(at),
            "flags": b"\x00",
            "order_key": order_key.encode(),
        }
        for role, target, at, order_key in change.get("slots", ())
    ]
    name = change["atom"]
    inputs = {"versions": [], "ranges": [], "scopes": [], "encoders": [], "grant_generation": 0, "generator": ""}
    datum = {
        "atom_id": atom_id(name),
        "revision_id": revision_id(f"{name}{number}"),
        "previous_revision_id": revision_id(f"{name}{number - 1}") if number > 1 else ZERO16,
        "key_id": bytes(9),
        "recorded_at": time8(us),
        "valid_from": bytes(8),
        "valid_to": bytes(8),
        "flags": b"\x01" if change.get("retired") else b"\x00",
        "schema": change["schema"],
        "policy": "notes",
        "slots": slots,
        "inputs": inputs,
        "sealed": encoded(schema("ContentV1"), content),
    }
    return encoded(schema("RevisionV1"), datum)


def value(position: int, counts: dict[str, int]) -> tuple[str, bytes]:
    """(kind, datum) of the record at a position."""
    if position == 0:
        claim = {"log_id": LOG_ID, "partition": 0, "partitions": 1, "hash_version": 1, "feature_level": 1}
        claim |= {"claimed_at": time8(START_US), "endpoint": "", "node": "golden", "pid": 7}
        return "Claim", encoded(schema("ClaimV1"), claim)
    if position not in STORY:
        return "Fence", encoded(schema("FenceV1"), {"requests": 1})
    us = START_US + position * 1_000_000
    revisions = []
    for change in STORY[position]:
        counts[change["atom"]] = counts.get(change["atom"], 0) + 1
        revisions.append(revision(change, counts[change["atom"]], us))
    batch = {
        "request_key": hashlib.sha256(b"key %d" % position).digest(),
        "request_digest": hashlib.sha256(b"digest %d" % position).digest(),
        "digest_key_id": bytes(9),
        "recorded_at": time8(us),
        "revision_schema": rabin(canonical_form(schema("RevisionV1"))),
        "space": "notes",
        "principal": "local",
        "inbox_topic": "",
        "inbox_partition": 0,
        "inbox_offset": 0,
        "revisions": revisions,
    }
    return "Batch", encoded(schema("BatchV1"), batch)


def records() -> list[dict[str, Any]]:
    found, chain, seq, counts = [], bytes(16), 0, dict[str, int]()
    for position in range(7):
        kind, datum = value(position, counts)
        fingerprint = rabin(canonical_form(schema(f"{kind}V1")))
        is_stranger = position == 3
        headers = {
            "rule": struct.pack(">H", 1),
            "kind": kind.encode(),
            "term": struct.pack(">Q", 1),
            "owner": STRANGER if is_stranger else OWNER,
            "seq": struct.pack(">Q", seq if kind != "Claim" else 0),
            "schema": fingerprint,
        }
        whole = b"\xc3\x01" + fingerprint + datum
        after = hashlib.sha256(chain + packed(headers, whole)).digest()[:16]
        headers["chain"] = bytes(16) if kind == "Claim" else after
        if not is_stranger:
            chain = after
            seq += kind != "Claim"
        found.append({"headers": {name: part.hex() for name, part in headers.items()}, "value": whole.hex()})
    return found


def text() -> str:
    names = {atom_id(atom).hex(): atom for atom in ATOMS}
    names |= {revision_id(f"{atom}{n}").hex(): f"{atom}{n}" for atom in ATOMS for n in (1, 2, 3)}
    made = {"log_id": LOG_ID.hex(), "names": names, "records": records(), "answers": ANSWERS}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    if not PATH.exists():
        PATH.write_text(text(), "utf-8")
    is_same = PATH.read_text("utf-8") == text()
    print(f"{PATH.name} {'stands as it was' if is_same else 'would change, and may not'}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
