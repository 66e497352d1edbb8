"""Files of one moment in memory, to be read: what a decoder of a whole file is given."""

from collections.abc import Mapping, Sequence
from typing import cast

from atomlog.kernel.ports import File, Files


class _MemoryFile:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


class _MemoryFiles:
    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        return cast(File, _MemoryFile(self.read(path)))

    def read(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def exists(self, path: str) -> bool:
        return path in self._files or bool(self.list(path))

    def list(self, path: str) -> Sequence[str]:
        inside = (name.removeprefix(f"{path}/") for name in self._files if name.startswith(f"{path}/"))
        return sorted({name.partition("/")[0] for name in inside})


def memory_files(files: Mapping[str, bytes]) -> Files:
    """A read-only file system of these files by path; a file may be of any content."""
    return cast(Files, _MemoryFiles(files))


def memory_file(data: bytes) -> File:
    return cast(File, _MemoryFile(data))
