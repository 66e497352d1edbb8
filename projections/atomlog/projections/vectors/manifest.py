"""Which shards there are. Every change is a new manifest file with the next generation number.

`manifest-<generation>.json` is written beside its name, fsynced and renamed, after the files that it names. It
carries a digest over itself. The newest readable one counts.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import Files

FORMAT: Final = 1
MANIFESTS_KEPT: Final = 32  # a continuation may name an older generation; each is some 600 bytes a shard
BYTES_MAX: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"manifest-([0-9]{8})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A file beside the manifest; `sha256` in hexadecimal."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """The shard of one range of content ordinals, [range · shard_rows, (range + 1) · shard_rows).

    `count` rows of `dim` numbers; rows that had died at or before `floor` are left out (−1: none are). `content_sha256`
    is over (ordinal u32 ‖ revision ‖ vector) of the rows in ordinal order. Both files are None when there are no rows.
    """

    partition: int
    space: str
    range: int
    count: int
    dim: int
    floor: int
    position: int  # what was applied when it was built
    links: int
    build_width: int
    content_sha256: str
    graph: ShardFile | None
    rows: ShardFile | None

    @property
    def files(self) -> tuple[ShardFile, ...]:
        return tuple(file for file in (self.graph, self.rows) if file is not None)

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in _ENTRY_FIELDS}
        return {**shown, "graph": _file_dict(self.graph), "rows": _file_dict(self.rows)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "ShardEntry":
        plain = {name: found[name] for name in _ENTRY_FIELDS}
        return cls(**plain, graph=_file(found["graph"]), rows=_file(found["rows"]))


_ENTRY_FIELDS: Final = (
    *("partition", "space", "range", "count", "dim", "floor", "position"),
    *("links", "build_width", "content_sha256"),
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Generation 0 has no file and no shards."""

    generation: int
    shard_rows: int
    shards: tuple[ShardEntry, ...] = ()

    @cached_property
    def places(self) -> Mapping[tuple[int, str, int], ShardEntry]:
        """The entries by (partition, space id, range)."""
        return {(entry.partition, entry.space, entry.range): entry for entry in self.shards}

    def floor(self, partition: int, space: str | None = None) -> int:
        """The lowest position that the shards of a partition, or of one of its spaces, can be searched as of."""
        chosen = (entry for entry in self.shards if entry.partition == partition and space in (None, entry.space))
        return max((entry.floor for entry in chosen), default=-1)

    def with_entry(self, entry: ShardEntry, generation: int) -> "Manifest":
        """The next manifest, with `entry` in the place of the one of its range."""
        places = {**self.places, (entry.partition, entry.space, entry.range): entry}
        shards = tuple(places[place] for place in sorted(places))
        return Manifest(generation=generation, shard_rows=self.shard_rows, shards=shards)

    def file_names(self) -> set[str]:
        return {file.name for entry in self.shards for file in entry.files}

    def to_bytes(self) -> bytes:
        body = {
            "format": FORMAT,
            "generation": self.generation,
            "shard_rows": self.shard_rows,
            "shards": [entry.to_dict() for entry in self.shards],
        }
        return jsontext.dumps({**body, "sha256": _digest(body)}) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes, path: str) -> "Manifest":
        """CORRUPT naming `path` when the bytes are not what `to_bytes` wrote."""
        try:
            found = jsontext.parse_json(raw, path, bytes_max=BYTES_MAX)
            body = {name: value for name, value in found.items() if name != "sha256"}
            if found["sha256"] != _digest(body) or body["format"] != FORMAT:
                raise ValueError("the digest or the format is another one")
            shards = tuple(ShardEntry.from_dict(entry) for entry in body["shards"])
            return cls(generation=body["generation"], shard_rows=body["shard_rows"], shards=shards)
        except (AtomlogError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise fail("CORRUPT", f"{path} is not readable: {error}; its shards are built anew") from None


class ManifestFiles:
    """The manifests of one directory."""

    def __init__(self, files: Files, directory: str, shard_rows: int) -> None:
        self._files = files
        self._directory = directory
        self._empty = Manifest(generation=0, shard_rows=shard_rows)

    def generations(self) -> list[int]:
        """Those that have a file, ascending."""
        names = (_NAME.fullmatch(name) for name in self._files.list(self._directory))
        return sorted(int(match[1]) for match in names if match)

    def newest(self, faults: dict[str, str]) -> Manifest:
        """The newest one that is readable; what is wrong with a newer one is added to `faults` by its path."""
        for generation in reversed(self.generations()):
            try:
                return self.load(generation)
            except FileNotFoundError:
                continue  # pruned since it was listed: then there is a newer one
            except AtomlogError as error:
                faults[self._path(generation)] = error.message
        return self._empty

    def load(self, generation: int) -> Manifest:
        """FileNotFoundError when it is not kept, CORRUPT when damaged."""
        if generation == 0:
            return self._empty
        path = self._path(generation)
        manifest = Manifest.from_bytes(self._files.read(path), path)
        if (manifest.generation, manifest.shard_rows) != (generation, self._empty.shard_rows):
            raise fail("CORRUPT", f"{path} is of another generation or shard size; its shards are built anew")
        return manifest

    def commit(self, manifest: Manifest) -> None:
        """Durable on return. The files that it names must be so already."""
        self._files.write_atomic(self._path(manifest.generation), manifest.to_bytes())

    def prune(self, kept: set[str], pinned: Sequence[int]) -> None:
        """Remove manifests that are too old and not pinned, and every other file that is not in `kept`."""
        newest = set(self.generations()[-MANIFESTS_KEPT:]) | set(pinned)
        stay = kept | {f"manifest-{generation:08d}.json" for generation in newest}
        for name in self._files.list(self._directory):
            if name not in stay:
                self._files.remove(f"{self._directory}/{name}")

    def _path(self, generation: int) -> str:
        return f"{self._directory}/manifest-{generation:08d}.json"


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(jsontext.canonical(body)).hexdigest()


def _file_dict(file: ShardFile | None) -> dict[str, Any] | None:
    return None if file is None else {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}


def _file(found: Mapping[str, Any] | None) -> ShardFile | None:
    return None if found is None else ShardFile(**found)
