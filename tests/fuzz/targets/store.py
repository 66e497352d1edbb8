"""What stands in a store's directory as text, and what comes over its socket."""

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any

from atomlog.consumers.exchange import receive
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.store_arguments import positions_of
from atomlog.consumers.store_config import FILE, StoreConfig
from atomlog.kernel.errors import AtomlogError, from_dict
from atomlog.kernel.ids import parse_key, parse_name
from atomlog.kernel.jsontext import dumps, parse_json
from atomlog.kernel.log.ownership import _not_owner, read_note
from atomlog.kernel.log.places import Place
from atomlog.kernel.requests import parse_write
from tests.fuzz.engine import Target, agree
from tests.fuzz.memory_files import memory_files
from tests.fuzz.targets.requests import BATCHES

_PLACE = Place(store="/store", log_id=bytes(16), partition=0)


def store_json(data: bytes) -> None:
    found = StoreConfig.load(memory_files({f"/store/{FILE}": data}), "/store")
    again = dumps(found.to_dict())
    agree(StoreConfig.load(memory_files({f"/store/{FILE}": again}), "/store") == found, "store.json changes")
    agree(0 < found.partitions <= 4_096 and len(found.log_id) == 16, "a store that cannot be passes")


def owner_note(data: bytes) -> None:
    files = memory_files({_PLACE.owner: data})
    read_note(files, _PLACE)
    agree(_not_owner(files, _PLACE).code == "NOT_OWNER", "a note decides more than how an owner is named")


def projection_notes(data: bytes) -> None:
    """CURRENT, health.json and the lock of a projection all hold these bytes."""
    folder = "/store/projections/ids"
    names = ("CURRENT", "health.json", "lock", "g000001/db/x")
    directory = GenerationDirectory(memory_files({f"{folder}/{name}": data for name in names}), "/store", "ids", _quiet)
    found = directory.current()
    agree(found is None or found.name == "g000001", "a generation that is not there")
    directory.noted_health()
    directory.holder()


def _quiet(event: Mapping[str, Any]) -> None:
    pass


def frames(data: bytes) -> None:
    """Everything that a connection sends: each message is one that the owner can answer, or the connection ends."""
    asyncio.run(_converse(data))


async def _converse(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    while True:
        message = await receive(reader)
        try:
            _asked(message)
        except AtomlogError as error:
            dumps({"id": message.get("id"), "ok": False, "error": error.to_dict()})
            agree(from_dict(error.to_dict()).code == error.code, "an error changes on its way")
        dumps({"id": message.get("id"), "ok": True})


def _asked(message: Mapping[str, Any]) -> None:
    """What the holder does with a message before it writes anything."""
    batch: Any = message.get("batch")
    parse_name(message.get("space"), "space")
    parse_key(message.get("key"), "key")
    parse_write(batch)


def write_receipt(data: bytes) -> None:
    """What a caller gives back to wait for a write."""
    ((partition, position),) = positions_of(parse_json(data, checked=False)).items()
    agree(type(partition) is int and type(position) is int, "a position that is none")


def _framed(message: Any) -> bytes:
    raw = json.dumps(message).encode()
    return struct.pack(">I", len(raw)) + raw


def _frames() -> list[bytes]:
    messages = [{"id": n, "op": "write", "space": "notes", "key": "k", "batch": b} for n, b in enumerate(BATCHES)]
    return [b"".join(map(_framed, messages)), _framed({"id": 1, "op": "places"}), _framed([1]), b"\xff\xff\xff\xff{}"]


def _sized(data: bytes) -> bytes:
    """One message whose length is right."""
    return struct.pack(">I", max(0, len(data) - 4)) + data[4:]


def _store_jsons() -> list[bytes]:
    config = StoreConfig(log_id=bytes(range(16))).to_dict()
    replay = {"source": "/a", "positions": {"0": 7, "1": -1}, "master_key": "/a/master.key"}
    return [json.dumps(config).encode(), json.dumps({**config, "replay": replay}).encode()]


CORRUPT = frozenset({"CORRUPT", "STORE_TOO_NEW"})
TARGETS = [
    Target(
        name="store-json",
        json=True,
        decode=store_json,
        seeds=_store_jsons,
        codes=CORRUPT,
        words=(b'"positions": {"', b"9" * 5_000, b'"\xd9\xa3": 1', b"1.0", b"true", b'"/"', b"[]", b"null"),
        bytes_per_byte=1_200,
    ),
    Target(
        name="owner-note",
        json=True,
        decode=owner_note,
        seeds=lambda: [b'{"pid": 7, "endpoint": "unix:owner.sock", "owner": "00"}', b"{}", b"[]"],
        words=(b'"pid": ', b'"endpoint": ', b'"path": ', b'"code": ', b'"self": '),
        bytes_per_byte=1_200,
    ),
    Target(
        name="projection-notes",
        decode=projection_notes,
        seeds=lambda: [b"g000001\n", b'{"health": "OK"}', b"17\n", b"g000002"],
        bytes_per_byte=1_200,
    ),
    Target(
        name="frames",
        decode=frames,
        seeds=_frames,
        refusals=(ConnectionError,),
        mended=_sized,
        words=(b'"id": ', b'"op": "write"', b'"batch": ', b'"id": [[[[[[', b"1e400", b"18446744073709551616"),
        executions=6_000,
        bytes_per_byte=2_500,
        lines_base=6_000,
    ),
    Target(
        name="write-receipt",
        json=True,
        decode=write_receipt,
        seeds=lambda: [b'{"space": "notes", "partition": 0, "position": 7, "term": 1, "chain": "00"}'],
        codes=frozenset({"INVALID_INPUT", "BOUND_EXCEEDED"}),
        bytes_per_byte=1_200,
    ),
]
