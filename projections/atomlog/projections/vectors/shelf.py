"""The shards of one store: which manifest counts, which are pinned, what is loaded, what was found damaged.

A pinned generation stays searchable by this process whatever is built meanwhile: its manifest is held, its files are
not removed. Another process that pins it keeps what it has loaded, loads what files are left, and searches the other
ranges exactly from their rows, which never leave the store; so does a search of a generation that nobody pinned.
Files that only generations before the last but one name are removed at the next change, those of the last but one
when the store is next opened for writing.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import Files
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.vectors.manifest import Manifest, ManifestFiles, ShardEntry
from atomlog.projections.vectors.shards import Shard, load_shard, verify_file

INCIDENTS_KEPT: Final = 100


class Shelf:
    """Call from one thread; `reader` and `committer` give calls for another."""

    def __init__(self, files: Files, directory: str, *, shard_rows: int, writable: bool) -> None:
        self.directory = directory
        self.incidents: deque[str] = deque(maxlen=INCIDENTS_KEPT)  # what was found damaged or missing, oldest first
        self._files = files
        self._manifests = ManifestFiles(files, directory, shard_rows)
        self._faults: dict[str, str] = {}
        self._loaded: dict[str, Shard] = {}
        self._pins: Counter[int] = Counter()
        self._held: dict[int, Manifest] = {}
        if writable:
            files.make_directory(directory)
        self.current = self._newest()
        self._named: set[str] = self.current.file_names()  # by the current manifest and the pinned ones
        if writable:
            self._manifests.prune(self.current.file_names(), [])

    @property
    def faults(self) -> Mapping[str, str]:
        """Path → what is wrong with it, until it was built anew."""
        return self._faults

    def reload(self) -> None:
        """Take over a manifest that another process committed."""
        newest = self._manifests.generations()[-1:]
        if newest and newest[0] > self.current.generation:
            self._faults.clear()
            self.current = self._newest()
            self._forget()

    def manifest(self, generation: int | None) -> Manifest:
        """The current one, or a pinned one; CURSOR_EXPIRED for another that is not kept."""
        if generation is None or generation == self.current.generation:
            return self.current
        if generation not in self._held:
            return self._load(generation)
        return self._held[generation]

    @property
    def pins(self) -> Mapping[int, int]:
        return self._pins

    def pin(self, generation: int) -> None:
        """Hold a generation until `unpin`, as often as it was pinned. CURSOR_EXPIRED when it is not kept any more."""
        self._held[generation] = self.manifest(generation)
        self._pins[generation] += 1
        self._forget()

    def unpin(self, generation: int) -> None:
        self._pins[generation] -= 1
        if self._pins[generation] <= 0:
            del self._pins[generation]
            del self._held[generation]
            self._forget()

    def shard(self, entry: ShardEntry, space: VectorSpace) -> Shard | None:
        """A shard, verified and loaded; None when its files are damaged or gone, which is then a fault.

        None also for one that neither the current manifest nor a pinned one names.
        """
        assert entry.graph is not None
        name = entry.graph.name
        if name not in self._loaded and name in self._named and not self.is_faulty(entry):
            self.put(entry, self._read(entry, space))
        return self._loaded.get(name)

    def put(self, entry: ShardEntry, loaded: Shard | str) -> None:
        """What `reader` gave: a shard, or why there is none. Ignored when no manifest names it any more."""
        assert entry.graph is not None
        if entry.graph.name not in self._named:
            return
        if isinstance(loaded, Shard):
            self._loaded[entry.graph.name] = loaded
        else:
            self._faults[f"{self.directory}/{entry.graph.name}"] = loaded
            self.incidents.append(loaded)

    def reader(self, entry: ShardEntry, space: VectorSpace) -> Callable[[], Shard | str]:
        """A call that verifies and loads a shard, for a worker; its result goes to `put`."""
        return lambda: self._read(entry, space)

    def is_faulty(self, entry: ShardEntry) -> bool:
        return entry.graph is not None and f"{self.directory}/{entry.graph.name}" in self._faults

    def missing(self) -> Sequence[ShardEntry]:
        """Current shards that are neither loaded nor known to be damaged."""
        return [
            entry
            for entry in self.current.shards
            if entry.graph is not None and entry.graph.name not in self._loaded and not self.is_faulty(entry)
        ]

    def verify(self, entry: ShardEntry) -> None:
        """CORRUPT naming a file of a shard that is not what was written, or gone; it is then a fault. Blocks."""
        try:
            for file in entry.files:
                verify_file(self._files, self.directory, file)
        except FileNotFoundError as error:
            message = f"{error.filename} is missing; it is built anew from the rows"
        except AtomlogError as error:
            message = error.message
        else:
            return
        self.put(entry, message)
        raise fail("CORRUPT", message)

    def next_generation(self) -> int:
        """Above every manifest file there is, readable or not."""
        return max([self.current.generation, *self._manifests.generations()]) + 1

    def committer(self, entry: ShardEntry, generation: int) -> tuple[Manifest, Callable[[], None]]:
        """The next manifest and the call that makes it durable, for a worker; then `advance`."""
        manifest = self.current.with_entry(entry, generation)
        return manifest, lambda: self._manifests.commit(manifest)

    def advance(self, manifest: Manifest) -> None:
        """Go over to a manifest that was committed, and remove what nobody needs any more."""
        previous = self.current
        self.current = manifest
        for path in [path for path in self._faults if not self._is_named(path)]:
            self.incidents.append(f"{path}: built anew in generation {manifest.generation}")
            del self._faults[path]
        held = [manifest, previous, *self._held.values()]
        kept = set().union(*(one.file_names() for one in held))
        self._manifests.prune(kept, [one.generation for one in held])
        self._forget()

    def close(self) -> None:
        """Let go of every shard: its files stay mapped as long as somebody has it."""
        self._loaded.clear()

    def _is_named(self, path: str) -> bool:
        return path.rpartition("/")[2] in self.current.file_names()

    def _newest(self) -> Manifest:
        faults: dict[str, str] = {}
        manifest = self._manifests.newest(faults)
        self.incidents.extend(faults.values())
        return manifest

    def _load(self, generation: int) -> Manifest:
        try:
            return self._manifests.load(generation)
        except (FileNotFoundError, AtomlogError):
            message = f"generation {generation} of the vector shards is not kept any more; start the read again"
            raise fail("CURSOR_EXPIRED", message) from None

    def _read(self, entry: ShardEntry, space: VectorSpace) -> Shard | str:
        try:
            return load_shard(self._files, self.directory, entry, space)
        except FileNotFoundError as error:
            return f"{error.filename} is missing; it is built anew from the rows"
        except AtomlogError as error:
            return error.message

    def _forget(self) -> None:
        """Unload shards of manifests that are not held."""
        self._named = self.current.file_names().union(*(held.file_names() for held in self._held.values()))
        self._loaded = {name: shard for name, shard in self._loaded.items() if name in self._named}
