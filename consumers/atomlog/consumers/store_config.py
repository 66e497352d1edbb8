"""store.json: what a store directory is, fixed when it is made.

::

    {"format": 1, "log_id": "<32 hex digits>", "partitions": 1, "hash_version": 1, "shard_rows": 50000,
     "vector_spaces": ["hashing/1/512/cosine"],
     "kafka": {"cluster_id": "…", "prefix": "atomlog"}, "blobs": "…",
     "replay": {"source": "…", "positions": {"0": 17}, "master_key": "…"}}

`kafka` stands only in a node of a shared store, whose log is not in the directory; `blobs` where they are in another
directory, which all nodes reach. `replay` stands only in a store that `replay_until` made: a copy as of these read
positions, which must not be written to, since it shares the log's identity with its source.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.paths import checked_path
from atomlog.kernel import jsontext
from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import HASH_VERSION, invalid, shown
from atomlog.kernel.ports import Files
from atomlog.kernel.vector_spaces import parse_vector_space

FORMAT: Final = 1
FILE: Final = "store.json"
PARTITIONS: Final = 1
SHARD_ROWS: Final = 50_000
VECTOR_SPACES: Final = ("hashing/1/512/cosine",)
PARTITIONS_MAX: Final = 4_096  # a partition number is a u16 in every key; each has its own directory and task
SHARD_ROWS_MAX: Final = 1_000_000
_LOG_ID: Final = re.compile(r"[0-9a-f]{32}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")  # Kafka names topics so; theirs end with a principal of 128
_CLUSTER_ID_MAX: Final = 100
_PARTITION: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOf:
    """Where a replayed store came from: absolute path, read positions by partition, path of the master key."""

    source: str
    positions: Mapping[int, int]
    master_key: str

    def to_dict(self) -> dict[str, Any]:
        positions = {str(partition): position for partition, position in sorted(self.positions.items())}
        return {"source": self.source, "positions": positions, "master_key": self.master_key}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPlace:
    """Where a shared store's log is: which Kafka cluster, by the id that it gave itself, and how its topics begin."""

    cluster_id: str
    prefix: str

    def to_dict(self) -> dict[str, Any]:
        return {"cluster_id": self.cluster_id, "prefix": self.prefix}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The content of store.json. `log_id` is 16 bytes; `shard_rows` content ordinals a vector shard covers.

    `kafka` None: the log is in the directory. `blobs` None: so are the blobs.
    """

    log_id: bytes
    format: int = FORMAT
    partitions: int = PARTITIONS
    hash_version: int = HASH_VERSION
    shard_rows: int = SHARD_ROWS
    vector_spaces: tuple[str, ...] = VECTOR_SPACES
    kafka: KafkaPlace | None = None
    blobs: str | None = None
    replay: ReplayOf | None = None

    @property
    def read_only(self) -> bool:
        """A replayed store shares its source's log id: a write here would fork that history."""
        return self.replay is not None

    def genesis(self, partition: int) -> Genesis:
        """What every Claim of this partition must say."""
        return Genesis(
            log_id=self.log_id, partition=partition, partitions=self.partitions, hash_version=self.hash_version
        )

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "format": self.format,
            "log_id": self.log_id.hex(),
            "partitions": self.partitions,
            "hash_version": self.hash_version,
            "shard_rows": self.shard_rows,
            "vector_spaces": list(self.vector_spaces),
        }
        if self.kafka is not None:
            shown["kafka"] = self.kafka.to_dict()
        if self.blobs is not None:
            shown["blobs"] = self.blobs
        return shown if self.replay is None else {**shown, "replay": self.replay.to_dict()}

    def save(self, files: Files, directory: str, name: str = FILE) -> None:
        """Write store.json, durably, or the same under another name. The directory must be there."""
        files.write_atomic(f"{directory}/{name}", jsontext.dumps(self.to_dict()) + b"\n")

    @classmethod
    def load(cls, files: Files, directory: str, name: str = FILE) -> "StoreConfig":
        """Read store.json, or the same under another name.

        Raises:
            INVALID_INPUT: the directory's path is none.
            STORE_NOT_FOUND: no directory, an empty one, or one that is something else.
            STORE_TOO_NEW: made by a later version.
            CORRUPT: store.json is there and does not say what it must.
        """
        path = f"{checked_path(directory, 'directory')}/{name}"
        try:
            raw = files.read(path)
        except (FileNotFoundError, NotADirectoryError):
            raise fail("STORE_NOT_FOUND", f"{directory}: {_what_it_is(files, directory)}") from None
        except PermissionError:
            raise fail("STORE_READ_ONLY", f"{path} cannot be read by this user") from None
        try:
            found = jsontext.parse_json(raw, FILE, bytes_max=1024 * 1024)
        except AtomlogError as error:
            raise _corrupt(path, error.message) from None
        return _parse(path, found)


def _what_it_is(files: Files, directory: str) -> str:
    if not files.exists(directory):
        return "there is no such directory; make a store with `atomlog init`"
    try:
        names = files.list(directory)
    except NotADirectoryError:
        return "this is a file; a store is a directory"
    if not names:
        return "the directory is empty; make a store in it with `atomlog init`"
    return f"the directory has no {FILE}, so it is no store; it holds {', '.join(names[:3])}"


def _parse(path: str, found: Any) -> StoreConfig:
    if not isinstance(found, Mapping) or not _is_count(found.get("format"), 2**31):
        raise _corrupt(path, "`format` must be a positive integer")
    if found["format"] > FORMAT:
        message = f"{path}: format {found['format']}, this program reads up to {FORMAT}; use a newer version"
        raise fail("STORE_TOO_NEW", message)
    checks: Mapping[str, bool] = {
        "log_id": isinstance(found.get("log_id"), str) and bool(_LOG_ID.fullmatch(found["log_id"])),
        "partitions": _is_count(found.get("partitions"), PARTITIONS_MAX),
        "hash_version": _is_count(found.get("hash_version"), 2**31),
        "shard_rows": _is_count(found.get("shard_rows"), SHARD_ROWS_MAX),
        "vector_spaces": _are_spaces(found.get("vector_spaces")),
        "kafka": found.get("kafka") is None or _is_kafka(found["kafka"]),
        "blobs": found.get("blobs") is None or _is_path(found["blobs"]),
        "replay": found.get("replay") is None or _is_replay(found["replay"]),
    }
    if checks["hash_version"] and found["hash_version"] > HASH_VERSION:
        message = (
            f"{path}: hash_version {found['hash_version']}, this program knows {HASH_VERSION}; use a newer version"
        )
        raise fail("STORE_TOO_NEW", message)
    # What is not known is a damaged name of what is: without `replay` a copy of a log would be written to.
    unknown = sorted(shown(name) for name in found.keys() - checks.keys() - {"format"})
    wrong = [name for name, right in checks.items() if not right] + unknown
    if wrong:
        raise _corrupt(path, f"not readable: {', '.join(wrong)}")
    return StoreConfig(
        format=found["format"],
        log_id=bytes.fromhex(found["log_id"]),
        partitions=found["partitions"],
        hash_version=found["hash_version"],
        shard_rows=found["shard_rows"],
        vector_spaces=tuple(found["vector_spaces"]),
        kafka=None if found.get("kafka") is None else KafkaPlace(**found["kafka"]),
        blobs=found.get("blobs"),
        replay=None if found.get("replay") is None else _replay(found["replay"]),
    )


def _replay(found: Mapping[str, Any]) -> ReplayOf:
    positions = {int(partition): position for partition, position in found["positions"].items()}
    return ReplayOf(source=found["source"], positions=positions, master_key=found["master_key"])


def _is_replay(found: Any) -> bool:
    if not isinstance(found, Mapping) or not isinstance(found.get("positions"), Mapping):
        return False
    texts = isinstance(found.get("source"), str) and isinstance(found.get("master_key"), str)
    return texts and all(
        _PARTITION.fullmatch(partition) and type(position) is int and position >= -1
        for partition, position in found["positions"].items()
    )


def _is_kafka(found: Any) -> bool:
    if not isinstance(found, Mapping) or set(found) != {"cluster_id", "prefix"}:
        return False
    cluster_id = found["cluster_id"]
    return isinstance(cluster_id, str) and 0 < len(cluster_id) <= _CLUSTER_ID_MAX and _is_prefix(found["prefix"])


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and bool(_PREFIX.fullmatch(value))


def _is_path(value: object) -> bool:
    try:
        return checked_path(value, FILE) == value
    except AtomlogError:
        return False


def check_prefix(value: object) -> None:
    """INVALID_INPUT unless the topics of a store can begin so."""
    if not _is_prefix(value):
        raise invalid("prefix", f"{shown(value)} is no prefix of topics: 1 to 100 of A-Z a-z 0-9 . _ -")


def check_count(value: object, name: str, maximum: int) -> None:
    """INVALID_INPUT unless it is a number that store.json may hold."""
    if not _is_count(value, maximum):
        raise invalid(name, f"{shown(value)} is no number from 1 to {maximum}")


def _is_count(value: Any, maximum: int) -> bool:
    return type(value) is int and 0 < value <= maximum


def _are_spaces(value: Any) -> bool:
    """By the rule that they were declared by, or a store could be made that cannot be opened."""
    try:
        return isinstance(value, list) and all(parse_vector_space(space, FILE).id for space in value)
    except AtomlogError:
        return False


def _corrupt(path: str, why: str) -> AtomlogError:
    message = f"{path}: {why}; put the original file back, e.g. from a backup"
    return fail("CORRUPT", message, details=[{"path": path, "code": "CORRUPT", "message": why}])
