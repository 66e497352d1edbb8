"""One part of a store alone, over damaged files: many times cheaper than the whole store, so that many bits are tried.

Each check gives question → answer like `probe`, from the part's own code, and is held against the undamaged answers.
"""

import asyncio
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import SqliteKeyStore
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.rocks import RocksKv, open_primary, open_secondary
from atomlog.kernel.rocks_files import IDENTITY_KEY
from atomlog.kernel.rocks_files import _records as records_of
from atomlog.kernel.sealing import load_master_key
from atomlog.kernel.system import SystemClock, SystemFiles, SystemRandomness, ThreadWorkers
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.projections.read.shelf import SqliteShelf
from atomlog.projections.vectors.shelf import Shelf
from atomlog.schemas.record import Record, pack
from tests.corruption.damage import Damage
from tests.corruption.store import PARTITIONS, SETTINGS, Sound

Answers = dict[str, Any]  # question → what was answered, or a typed error as a dict with "code"
CACHE_BYTES: Final = 1024 * 1024
FILES: Final = SystemFiles()


def checked(sound: Sound, check: str, damage: Damage, directory: Path) -> dict[str, Any]:
    """The finding of a damage, as JSON: `wrong`, `refused`."""
    base = sound.closed if check.startswith("closed ") else sound.now
    roots = {_root(path) for path in (damage.path, damage.other) if path}
    for root in roots:
        _copied(base, directory, root)
    damage.do(directory, sound.older)
    wrong: list[str] = []
    refused: dict[str, Any] = {}
    for root in sorted(roots):
        true = _undamaged(sound, check, root)
        for question, answer in CHECKS[check](sound, directory, root).items():
            if isinstance(answer, Mapping) and "code" in answer:
                refused[f"{root}: {question}"] = answer
            elif answer not in (true[question], *true.get("also", ())) and not _is_shorter(
                damage, answer, true[question]
            ):
                wrong.append(f"{root}: {question}: {str(answer)[:300]} and not {str(true[question])[:300]}")
    return {"wrong": wrong, "refused": refused}


def _is_shorter(damage: Damage, answer: Any, true: Any) -> bool:
    """A reader sees less of the log with an older durable_end."""
    return damage.path.endswith("durable_end") and isinstance(answer, list) and answer == true[: len(answer)]


def _root(path: str) -> str:
    """What is opened together with this file."""
    parts = path.split("/")
    if "db" in parts:
        return "/".join(parts[: parts.index("db") + 1])
    if "shards" in parts:
        return "/".join(parts[: parts.index("shards") + 1])
    if parts[:3] == ["projections", "vectors", "cache"]:
        return "/".join(parts[:3])
    if parts[0] == "log":
        return "log"
    return "/".join(parts[:2]) if parts[0] == "projections" else ""


def _copied(now: Path, directory: Path, root: str) -> None:
    if root:
        shutil.copytree(now / root, directory / root)
    else:  # the files beside the directories
        directory.mkdir(parents=True, exist_ok=True)
        for path in now.iterdir():
            if path.is_file():
                shutil.copy(path, directory)
        if (now / "blobs").exists():
            shutil.copytree(now / "blobs", directory / "blobs")


_TRUTHS: Final[dict[tuple[str, str], Answers]] = {}


def _undamaged(sound: Sound, check: str, root: str) -> Answers:
    if (check, root) not in _TRUTHS:
        copy = sound.now.parent / f"undamaged-{check}-{root.replace('/', '-')}-{os.getpid()}"
        shutil.rmtree(copy, ignore_errors=True)
        _copied(sound.closed if check.startswith("closed ") else sound.now, copy, root)
        found = CHECKS[check](sound, copy, root)
        assert not [one for one in found.values() if isinstance(one, Mapping) and "code" in one], found
        if check == "database":
            found["also"] = list(_earlier_states(sound, root, copy))
        shutil.rmtree(copy)
        _TRUTHS[check, root] = found
    return _TRUTHS[check, root]


def _asked(questions: Mapping[str, Callable[[], Any]]) -> Answers:
    found: Answers = {}
    for name, question in questions.items():
        try:
            found[name] = question()
        except AtomlogError as error:
            found[name] = error.to_dict()
    return found


# --- the log -------------------------------------------------------------------------------------------------------


def _log(sound: Sound, directory: Path, root: str) -> Answers:
    """What a reader reads, and what an owner reads after it took the partition."""
    config = StoreConfig.load(FILES, str(sound.now))
    found: Answers = {}

    async def ask(name: str, log: EmbeddedLog, partition: int, *, own: bool) -> None:
        try:
            if own:
                await log.acquire(partition)
            found[name] = await _records(log, partition)
        except AtomlogError as error:
            found[name] = error.to_dict()

    async def ask_all() -> None:
        log = EmbeddedLog(
            files=FILES,
            workers=ThreadWorkers(),
            clock=SystemClock(),
            directory=str(directory),
            log_id=config.log_id,
            partitions=PARTITIONS,
            settings=SETTINGS,
        )
        for own in (False, True):
            for partition in range(PARTITIONS):
                await ask(f"{'owner' if own else 'reader'} of {partition}", log, partition, own=own)
        await log.close()

    asyncio.run(ask_all())
    return found


async def _records(log: EmbeddedLog, partition: int) -> list[str]:
    records: list[str] = []
    while found := await log.read(partition, len(records), bytes_max=100_000):
        for one in found:
            assert isinstance(one.record, Record)
            assert one.position == len(records)
            records.append(hashlib.sha256(pack(one.record)).hexdigest())
    return records


# --- RocksDB -------------------------------------------------------------------------------------------------------


def _database(sound: Sound, directory: Path, root: str) -> Answers:
    """The content as a primary reads it, and as a reader beside it does."""
    path = directory / root
    copy = directory / "beside" / root
    shutil.copytree(path, copy)
    scratch = str(directory / "scratch")
    return _asked(
        {
            "reader": lambda: _content(open_secondary(str(copy), scratch, block_cache_bytes=CACHE_BYTES)),
            "primary": lambda: _content(open_primary(str(path), block_cache_bytes=CACHE_BYTES)),
        }
    )


def _content(kv: RocksKv) -> str:
    """A digest of all pairs, which scans in both directions and point reads must agree about."""
    try:
        pairs = [pair for pair in kv.scan(b"", b"\xff" * 50) if pair[0] != IDENTITY_KEY]
        back = [pair for pair in kv.scan_back(b"", b"\xff" * 50) if pair[0] != IDENTITY_KEY]
        assert pairs == back[::-1], "scans differ"
        assert list(kv.get_many([key for key, _ in pairs])) == [value for _, value in pairs], "point reads differ"
        return hashlib.sha256(repr(pairs).encode()).hexdigest()
    finally:
        kv.close()


def _earlier_states(sound: Sound, root: str, copy: Path) -> Iterator[str]:
    """What the database held before each batch that is in its log: a position that its follower goes on from."""
    for log in sorted((sound.now / root).glob("*.log")):
        for start, _ in records_of(str(log)):
            shutil.rmtree(copy)
            shutil.copytree(sound.now / root, copy / root)
            (copy / root / log.name).write_bytes(log.read_bytes()[:start])
            yield _content(open_primary(str(copy / root), block_cache_bytes=CACHE_BYTES))


# --- shards --------------------------------------------------------------------------------------------------------


def _shards(sound: Sound, directory: Path, root: str) -> Answers:
    """Each shard that the manifest names; one that is damaged is refused in the words of its incident."""
    shelf = Shelf(FILES, str(directory / root), shard_rows=8, writable=False)
    space = parse_vector_space("hashing/1/64/cosine", "space")
    query = np.full(64, 0.125, dtype=np.float32)
    found: Answers = {}
    for entry in shelf.current.shards:
        shard = shelf.shard(entry, space)
        if shard is not None:
            nearest = shard.graph.query(query, entry.count)
            rows = (shard.rows.tobytes(), shard.ordinals.tobytes(), None if nearest is None else nearest.tobytes())
            found[f"shard {entry.range}"] = hashlib.sha256(repr(rows).encode()).hexdigest()
    for number, incident in enumerate(shelf.incidents):
        found[f"incident {number}"] = {"code": "CORRUPT", "message": incident}
    return found


# --- SQLite --------------------------------------------------------------------------------------------------------


def _keys(sound: Sound, directory: Path, root: str) -> Answers:
    """The keys of every page, the pages of each partition, and one page more."""
    with sqlite3.connect(sound.now / "keys.sqlite") as database:
        pages = [row[0] for row in database.execute("SELECT page FROM pages")]
    database.close()
    master = load_master_key(FILES, str(sound.now / "master.key"))
    found: Answers = {}

    async def ask_all() -> None:
        store = SqliteKeyStore(str(directory / "keys.sqlite"), ThreadWorkers())
        ring = KeyRing(store, master=master, randomness=SystemRandomness(), clock=SystemClock(), key_wait_ms=1)
        for page in pages:
            for index in (0, 255):
                try:
                    found[f"{page.hex()}.{index}"] = (await ring.key(page + bytes((index,)))).hex()
                except AtomlogError as error:
                    found[f"{page.hex()}.{index}"] = error.to_dict()
        for partition in range(PARTITIONS):
            try:
                await store.outlines(partition)
                found[f"outlines {partition}"] = "read"  # each is held against its page before it is used
            except AtomlogError as error:
                found[f"outlines {partition}"] = error.to_dict()
        await store.close()

    asyncio.run(ask_all())
    return found


def _receipts(sound: Sound, directory: Path, root: str) -> Answers:
    """Every receipt and cursor; one that is not found is refused as expired by who asked for it."""
    with sqlite3.connect(sound.closed / "reads.sqlite") as database:
        receipts = [row[0] for row in database.execute("SELECT id FROM receipts")]
        kept = [row[0] for row in database.execute("SELECT id FROM kept")]
    database.close()
    expired = {"code": "RECEIPT_EXPIRED", "message": "not there"}
    found: Answers = {}
    try:
        shelf = SqliteShelf(str(directory / "reads.sqlite"))
    except AtomlogError as error:
        return {"open": error.to_dict()}
    questions: dict[str, Callable[[], Any]] = {
        **{f"receipt {one.hex()}": partial(shelf.receipt, one) for one in receipts},
        **{f"kept {one.hex()}": partial(_cursor, shelf, one) for one in kept},
    }
    found = {name: answer or expired for name, answer in _asked(questions).items()}
    secrets = _asked({"secrets": lambda: shelf.secrets(lambda: bytes(32))})["secrets"]
    found["secrets"] = secrets
    if "code" not in secrets:
        found["secrets"] = {(0 <= number < 256, type(secret), len(secret)) for number, secret in secrets.items()}
    _asked({"close": shelf.close})
    return found


def _cursor(shelf: SqliteShelf, kept_id: bytes) -> bytes | None:
    """Its body; when it expires stands in the continuation, too."""
    found = shelf.kept(kept_id)
    return None if found is None else found.body


# --- single files --------------------------------------------------------------------------------------------------


def _files(sound: Sound, directory: Path, root: str) -> Answers:
    """What is one file each: read by the code that reads it."""
    if root.startswith("projections"):
        place = GenerationDirectory(FILES, str(directory), root.rpartition("/")[2], lambda event: None)
        lost = {"code": "CORRUPT", "message": "CURRENT leads nowhere: another generation is begun"}
        found = _asked({"current": lambda: generation.name if (generation := place.current()) else lost})
        place.noted_health()
        place.holder()
        return found
    missing = {"code": "KEY_UNAVAILABLE", "message": "master.key is absent: said when a key is needed"}
    return _asked({"master key": lambda: str(load_master_key(FILES, str(directory / "master.key")) or "") or missing})


CHECKS: Final[Mapping[str, Callable[[Sound, Path, str], Answers]]] = {
    "log": _log,
    "database": _database,
    "shards": _shards,
    "keys": _keys,
    "receipts": _receipts,
    "closed receipts": _receipts,
    "files": _files,
}
