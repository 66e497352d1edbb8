"""The commit rule again, on plain tuples and dicts, sharing nothing with the program. Written from docs/commit-rule.md.

A record is (headers, value): a list of (name, bytes) pairs as they came, and bytes. A state is a dict. `world` says
what the reader knows: {"genesis": {...}, "schemas": {kind: [fingerprint, ...]}, "level": n}.
"""

import hashlib
from typing import Any

Datum = dict[str, Any]
Headers = list[tuple[str, bytes]]
Verdict = tuple[str, Any]

NAMES = ["rule", "kind", "term", "owner", "seq", "schema", "chain"]
SIZES = {"rule": 2, "term": 8, "owner": 16, "seq": 8, "schema": 8, "chain": 16}
START = {"term": 0, "owner": bytes(16), "next_seq": 0, "chain": bytes(16), "level": 1}


class Unreadable(Exception):
    pass


def verdict(state: Datum, headers: Headers, value: bytes, world: Datum) -> Verdict:
    """("effective", state after) or ("void", reason) or ("stop", code)."""
    found = dict(headers)
    term = number(found["term"]) if len(found.get("term", b"")) == 8 else None
    owner = found["owner"] if len(found.get("owner", b"")) == 16 else None
    kind = kind_of(found.get("kind", b""))
    # 1. Whom does it concern?
    next_claim = kind == "Claim" and term == state["term"] + 1
    from_owner = state["term"] > 0 and term == state["term"] and owner == state["owner"]
    if not next_claim and not from_owner:
        return "void", reason_of_stranger(state, term, owner, kind)
    # 2. It does; so it must be understood.
    if not well_formed(headers, found, kind) or number(found["rule"]) != 1:
        return "stop", "UPGRADE_REQUIRED"
    if kind == "Claim" and (any(found["seq"]) or any(found["chain"])):
        return "stop", "UPGRADE_REQUIRED"
    # 3. A second Claim of the current owner.
    if kind == "Claim" and not next_claim:
        return "void", "claim_lost"
    # 5. Its turn? (A Claim is not counted.)
    seq = number(found["seq"])
    if kind != "Claim" and seq != state["next_seq"]:
        return "void", "seq_repeated" if seq < state["next_seq"] else "seq_gap"
    # 4 and 6. Of a kind and schema that this reader knows?
    schema = found["schema"]
    if schema not in world["schemas"].get(kind, []) or value[:10] != b"\xc3\x01" + schema:
        return "stop", "UPGRADE_REQUIRED"
    chain = chain_of(state["chain"], found, value)
    if kind == "Claim":
        return claimed(term, owner, chain, value, state, world)
    # 7. The same history?
    if found["chain"] != chain:
        return "stop", "LOG_DIVERGED"
    # 8. It counts.
    after = {**state, "next_seq": state["next_seq"] + 1, "chain": chain}
    if kind == "Upgrade":
        try:
            level = read_fields(value[10:], ["int", "text"])[0]
        except Unreadable:
            return "stop", "UPGRADE_REQUIRED"
        if level > world["level"]:
            return "stop", "UPGRADE_REQUIRED"
        after["level"] = max(level, state["level"])
    return "effective", after


def claimed(term: Any, owner: Any, chain: bytes, value: bytes, state: Datum, world: Datum) -> Verdict:
    try:
        fields = read_fields(value[10:], [16, "int", "int", "int", "int", 8, "text", "text", "long"])
    except Unreadable:
        return "stop", "UPGRADE_REQUIRED"
    genesis = dict(zip(["log_id", "partition", "partitions", "hash_version"], fields, strict=False))
    if genesis != world["genesis"]:
        return "stop", "LOG_MISMATCH"
    if fields[4] > world["level"]:
        return "stop", "UPGRADE_REQUIRED"
    return "effective", {**state, "term": term, "owner": owner, "next_seq": 0, "chain": chain}


def reason_of_stranger(state: Datum, term: int | None, owner: bytes | None, kind: str | None) -> str:
    if term is None or owner is None or kind is None:
        return "malformed"
    if kind == "Claim":
        return "claim_lost"
    if term == state["term"]:
        return "foreign_owner"
    return "stale_term" if term < state["term"] else "future_term"


def well_formed(headers: Headers, found: dict[str, bytes], kind: str | None) -> bool:
    right_names = [name for name, _ in headers] == NAMES
    return right_names and kind is not None and all(len(found[name]) == size for name, size in SIZES.items())


def kind_of(raw: bytes) -> str | None:
    return "".join(map(chr, raw)) if 1 <= len(raw) <= 32 and max(raw) < 128 else None


def chain_of(before: bytes, found: dict[str, bytes], value: bytes) -> bytes:
    parts = [len(found[name]).to_bytes(2, "big") + found[name] for name in NAMES[:-1]]
    return hashlib.sha256(before + b"".join(parts) + len(value).to_bytes(4, "big") + value).digest()[:16]


def number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def read_fields(raw: bytes, types: list[int | str]) -> list[Any]:
    """Avro fields in order: a size = that many bytes, "int", "long", "text"; nothing may be left over."""
    fields: list[Any] = []
    for kind in types:
        field: Any
        if isinstance(kind, int):
            field, raw = raw[:kind], raw[kind:]
            if len(field) != kind:
                raise Unreadable
        else:
            field, raw = read_varint(raw, 31 if kind == "int" else 63)
            if kind == "text":
                size = field
                if not 0 <= size <= len(raw):
                    raise Unreadable
                try:
                    field, raw = raw[:size].decode(), raw[size:]
                except UnicodeDecodeError:
                    raise Unreadable from None
        fields.append(field)
    if raw:
        raise Unreadable
    return fields


def read_varint(raw: bytes, bits: int) -> tuple[int, bytes]:
    groups: list[int] = []
    while True:
        if len(groups) == len(raw) or len(groups) == 10:
            raise Unreadable
        groups.append(raw[len(groups)])
        if groups[-1] < 128:
            break
    zigzag = sum((group & 127) << (7 * place) for place, group in enumerate(groups))
    value = zigzag // 2 if zigzag % 2 == 0 else -(zigzag + 1) // 2
    overlong = len(groups) > 1 and groups[-1] == 0
    if overlong or not -(2**bits) <= value < 2**bits:
        raise Unreadable
    return value, raw[len(groups) :]
