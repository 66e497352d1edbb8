"""Bitmaps, pages of postings, rows of relations and vectors, manifests of shards."""

import hashlib
import struct
from typing import Any

from atomlog.kernel.jsontext import canonical, dumps, parse_json
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.postings.layout import changes_of, pack_page, unpack_head, unpack_page
from atomlog.projections.relations.layout import pack_state, unpack_state
from atomlog.projections.slices import slice_revision
from atomlog.projections.vectors.layout import Row, Trouble, Work
from atomlog.projections.vectors.manifest import Manifest, ShardEntry, ShardFile
from atomlog.schemas.revision import decode_clear
from atomlog.schemas.varint import WireError
from tests.fuzz.engine import Target, agree
from tests.schemas.golden_files import encodings


def bitmap(data: bytes) -> None:
    found = Bitmap.from_bytes(data)
    numbers = list(found) if len(found) <= 200_000 else []
    agree(numbers == sorted(set(numbers)), "a bitmap is no ascending set")
    if numbers:
        agree(Bitmap(numbers) == found, "a bitmap holds other numbers than it gives")
        agree(Bitmap.from_bytes(found.canonical_bytes()) == found, "the canonical form holds other numbers")


def postings_page(data: bytes) -> None:
    changes, members = unpack_page(data, 3)
    again = pack_page(changes, members)
    agree(unpack_page(again, 3) == (changes, members), "a page changes when it is written")
    list(changes_of(changes))


def sliced_revision(data: bytes) -> None:
    """What is sliced out of a revision is what decoding it gives, whenever it can be decoded."""
    try:
        clear, _ = decode_clear(data)
    except WireError:
        slice_revision(data)
        return
    _, _, slots, _, _ = slice_revision(data)
    roles = [role.decode() for role, _, _ in slots]
    agree(roles == [slot.role for slot in clear.slots], "other roles are sliced out than are decoded")
    agree([rest[:17] for _, _, rest in slots] == [_pin(slot) for slot in clear.slots], "other pins or flags")


def _pin(slot: Any) -> bytes:
    return (slot.at or bytes(16)) + bytes([slot.include | slot.required << 1])


def vector_rows(data: bytes) -> None:
    rest = data[1:]
    match data[:1]:
        case b"r":
            agree(Row.from_bytes(rest).to_bytes() == rest, "a row reads as another")
        case b"w":
            agree(Work.from_bytes(rest).to_bytes() == rest, "how far embedding is reads as something else")
        case _:
            Trouble.from_bytes(rest)


def head_states(data: bytes) -> None:
    """What relations and postings keep of an atom's head."""
    rest = data[1:]
    if data[:1] == b"s":
        state = unpack_state(rest)
        agree(unpack_state(pack_state(state)).slots == state.slots, "a state changes when it is written")
    else:
        unpack_head(rest)


def manifest(data: bytes) -> None:
    found = Manifest.from_bytes(data, "manifest-00000001.json")
    agree(Manifest.from_bytes(found.to_bytes(), "m") == found, "a manifest changes when it is written")
    for entry in found.shards:
        found.floor(entry.partition, entry.space)
    found.file_names()


def _digested(data: bytes) -> bytes:
    """A manifest whose digest is right, whatever it says."""
    try:
        found = parse_json(data)
        body = {name: value for name, value in found.items() if name != "sha256"}
        return dumps({**body, "sha256": hashlib.sha256(canonical(body)).hexdigest()})
    except Exception:
        return data


def _manifests() -> list[bytes]:
    file = ShardFile(name="a.hnsw", size_bytes=7, sha256="00" * 32)
    entry = ShardEntry(
        partition=0,
        space="hashing/1/512/cosine",
        range=2,
        count=9,
        dim=512,
        floor=-1,
        position=20,
        links=16,
        build_width=100,
        content_sha256="11" * 32,
        graph=file,
        rows=None,
    )
    return [Manifest(generation=1, shard_rows=50_000, shards=(entry,)).to_bytes()]


def _bitmaps() -> list[bytes]:
    many = Bitmap(range(0, 70_000, 3))
    return [each.to_bytes() for each in (Bitmap(), Bitmap([1, 65_536]), Bitmap(range(5_000)), many)]


def _pages() -> list[bytes]:
    changes = struct.pack(">QH", 15, 3) * 2
    base = 3 << 16
    return [pack_page(changes, Bitmap([base | 3, base | 9])), pack_page(b"", Bitmap(range(base, base + 40)))]


def _rows() -> list[bytes]:
    row = Row(3, 7, 9, bytes(range(16)), bytes(range(16)))
    trouble = Trouble.from_bytes(b"\x01\x02down")
    return [b"r" + row.to_bytes(), b"w" + Work(cursor=9, embedded=4).to_bytes(), b"t" + trouble.to_bytes()]


def _states() -> list[bytes]:
    encoded = slice_revision(encodings("RevisionV1")["full"])[3]
    return [
        b"s" + struct.pack(">QQBH", 1, 2, 0, 1) + bytes(24) + encoded,
        b"h" + struct.pack(">BIB", 0, 1 << 31, 5) + b"notes" + encoded,
    ]


CORRUPT = frozenset({"CORRUPT"})
TARGETS = [
    Target(name="bitmap", decode=bitmap, seeds=_bitmaps, codes=CORRUPT, bytes_base=40_000_000, executions=10_000),
    Target(name="postings-page", decode=postings_page, seeds=_pages, codes=CORRUPT),
    Target(name="sliced-revision", decode=sliced_revision, seeds=lambda: list(encodings("RevisionV1").values())),
    Target(name="vector-rows", decode=vector_rows, seeds=_rows, codes=CORRUPT, executions=10_000),
    Target(name="head-states", decode=head_states, seeds=_states, codes=CORRUPT),
    Target(
        name="manifest",
        json=True,
        decode=manifest,
        seeds=_manifests,
        codes=CORRUPT,
        mended=_digested,
        bytes_per_byte=1_500,
    ),
]
