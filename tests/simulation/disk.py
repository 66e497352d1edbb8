"""A disk with a page cache: what was not synced may be lost, kept or torn when the power goes.

A file's writes are durable after its `sync`, a name after the `sync_directory` of its directory. At a power cut each
file keeps some of what came since, and each directory the first few of its changes. A sync that fails drops what it
should have written: the cache goes on showing it, a later sync does not write it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

PAGE_BYTES = 512
FREE_BYTES = 1 << 40


@dataclass(slots=True)
class Inode:
    """A file. `durable` is what is on the disk, `cached` what readers see, `writes` what the next sync writes."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, bytes), or (size, None): cut
    lost: list[tuple[int, int]] = field(default_factory=list)  # ranges that a failed sync did not write
    locked_by: object = None

    def write(self, offset: int, data: bytes) -> None:
        _apply(self.cached, offset, data)
        self.writes.append((offset, data))
        if self.lost:
            self.lost = list(_without(self.lost, offset, offset + len(data)))

    def truncate(self, size: int) -> None:
        if size != len(self.cached):
            _apply(self.cached, size, None)
            self.writes.append((size, None))

    def sync(self) -> None:
        before, self.durable, self.writes = self.durable, bytes(self.cached), []
        if self.lost:
            durable = bytearray(self.durable)
            for start, stop in self.lost:
                old = before[start:stop].ljust(stop - start, b"\0")
                durable[start:stop] = old[: max(0, len(durable) - start)]
            self.durable = bytes(durable)

    def fail_to_sync(self) -> None:
        """The pages are marked clean and nothing is on the disk."""
        self.lost += [(offset, offset + len(data)) for offset, data in self.writes if data is not None]
        self.writes = [(size, None) for size, data in self.writes if data is None]

    def cut_power(self, chance: Random) -> None:
        choice = chance.randrange(5) if self.writes else 0
        if choice == 1 and not self.lost:
            self.durable = bytes(self.cached)
        elif choice in (2, 3):
            self.durable = self._first_writes(chance)
        elif choice == 4 and not self.lost:
            self.durable = self._some_pages(chance)
        self.cached, self.writes, self.lost = bytearray(self.durable), [], []

    def _first_writes(self, chance: Random) -> bytes:
        """The first few, the last of them in part."""
        left = bytearray(self.durable)
        count = chance.randint(0, len(self.writes))
        for offset, data in self.writes[:count]:
            _apply(left, offset, data)
        if count < len(self.writes):
            offset, data = self.writes[count]
            if data is not None:
                _apply(left, offset, data[: chance.randint(0, len(data))])
        return bytes(left)

    def _some_pages(self, chance: Random) -> bytes:
        """The new size, and of each page that was changed the old or the new one."""
        size = len(self.cached)
        old = self.durable[:size].ljust(size, b"\0")
        pages = [
            (self.cached if chance.random() < 0.5 else old)[start : start + PAGE_BYTES]
            for start in range(0, size, PAGE_BYTES)
        ]
        return b"".join(pages)


@dataclass(slots=True)
class Directory:
    """Names → files or directories (None). `changes` are those since the last sync."""

    names: dict[str, Inode | None] = field(default_factory=dict)
    durable: dict[str, Inode | None] = field(default_factory=dict)
    changes: list[Callable[[dict[str, Inode | None]], None]] = field(default_factory=list)

    def change(self, change: Callable[[dict[str, Inode | None]], None]) -> None:
        change(self.names)
        self.changes.append(change)

    def sync(self) -> None:
        self.durable, self.changes = dict(self.names), []

    def cut_power(self, chance: Random) -> None:
        for change in self.changes[: chance.randint(0, len(self.changes))]:
            change(self.durable)
        self.names, self.changes = dict(self.durable), []


class Disk:
    """Directories by path; `stores` are key-value stores that live in one, by its path."""

    def __init__(self, chance: Random) -> None:
        self.directories: dict[str, Directory] = {"": Directory()}
        self.stores: dict[str, StoreOnDisk] = {}
        self._chance = chance

    def find(self, path: str) -> Inode | None:
        """The file at `path`; None for a directory. FileNotFoundError, NotADirectoryError."""
        parent, name = split(path)
        directory = self.directory(parent)
        if name not in directory.names:
            raise FileNotFoundError(2, "No such file or directory", path)
        return directory.names[name]

    def directory(self, path: str) -> Directory:
        if path not in self.directories:
            above = path
            while above:
                above, name = split(above)
                if above in self.directories and self.directories[above].names.get(name) is not None:
                    raise NotADirectoryError(20, "Not a directory", path)
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.directories[path]

    def exists(self, path: str) -> bool:
        parent, name = split(path)
        return parent in self.directories and name in self.directories[parent].names

    def cut_power(self) -> None:
        """Only what was durable is sure to be there; nothing is open any more."""
        files = [f for d in self.directories.values() for f in (*d.names.values(), *d.durable.values())]
        seen: set[int] = set()
        for inode in files:
            if inode is not None and id(inode) not in seen:
                seen.add(id(inode))
                inode.cut_power(self._chance)
                inode.locked_by = None
        for directory in self.directories.values():
            directory.cut_power(self._chance)
        self._forget_lost_directories()
        for store in self.stores.values():
            store.cut_power(self._chance)

    def _forget_lost_directories(self) -> None:
        for path in sorted(self.directories):  # parents first
            if path and not (split(path)[0] in self.directories and self.exists(path)):
                del self.directories[path]
        for path in [path for path in self.stores if path not in self.directories]:
            del self.stores[path]


class StoreOnDisk:
    """What a key-value store left: all writes in order, those before the last sync for sure."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self.writes: list[tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]] = []
        self.opened_by: object = None
        self.version = 0  # goes up with every write, for those who read beside the writer

    def sync(self) -> None:
        self._make_durable(len(self.writes))

    def cut_power(self, chance: Random) -> None:
        self._make_durable(chance.randint(0, len(self.writes)))
        self.values, self.opened_by = dict(self.durable), None
        self.writes = []
        self.version += 1

    def _make_durable(self, count: int) -> None:
        for puts, deletes in self.writes[:count]:
            for key in deletes:
                self.durable.pop(key, None)
            self.durable.update(puts)
        del self.writes[:count]


def split(path: str) -> tuple[str, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    return parent, name


def join(parent: str, name: str) -> str:
    return f"{parent}/{name}"


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    """Write `data` at `offset`, filling up with zeros; None: cut to `offset` bytes, or lengthen."""
    if len(target) < offset:
        target += bytes(offset - len(target))
    if data is None:
        del target[offset:]
    else:
        target[offset : offset + len(data)] = data


def _without(ranges: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The ranges without start … stop."""
    for low, high in ranges:
        if low < min(high, start):
            yield low, min(high, start)
        if max(low, stop) < high:
            yield max(low, stop), high
