"""Blobs in a local directory: `<first byte>/<second byte>/<address>`, all in hexadecimal.

A blob is immutable and named by the SHA-256 of the bytes that are stored, which are sealed. It is verified on every
read.
"""

import hashlib
from typing import Final

from atomlog.kernel.errors import fail, of_system
from atomlog.kernel.ports import Files, Workers
from atomlog.kernel.sqlite import of_os_error

ADDRESS_BYTES: Final = 32


class DirectoryBlobStore:
    """Implements `BlobStore`. The directory is made by the first `put`."""

    def __init__(self, files: Files, workers: Workers, directory: str) -> None:
        self._files = files
        self._workers = workers
        self._directory = directory
        self._durable: set[str] = set()  # directories whose entries in their parents are durable: at most 65,793

    async def put(self, data: bytes) -> bytes:
        """Store bytes, durable on return; the same bytes again mend a damaged file.

        Raises:
            STORE_READ_ONLY, OVERLOADED: no rights, no space. OSError: the disk failed.
        """
        return await self._workers.run(lambda: self._put(data))

    async def get(self, address: bytes) -> bytes:
        """The bytes of an address (32 bytes). NOT_FOUND when absent, CORRUPT naming the file when changed."""
        return await self._workers.run(lambda: self._get(address))

    def _put(self, data: bytes) -> bytes:
        address = hashlib.sha256(data).digest()
        path = self._path(address)
        try:
            self._make_directory(path.rpartition("/")[0])
            self._files.write_atomic(path, data, mode=0o600)
        except OSError as error:
            raise of_os_error(error, path) from error
        return address

    def _make_directory(self, path: str) -> None:
        """With parents, each entry durable in its parent before a blob below it can be called durable."""
        if path in self._durable:
            return
        self._files.make_directory(path)
        middle = path.rpartition("/")[0]
        for child in (self._directory, middle, path):
            if child not in self._durable:
                self._files.sync_directory(child.rpartition("/")[0] or ("/" if child.startswith("/") else "."))
                self._durable.add(child)

    def _get(self, address: bytes) -> bytes:
        path = self._path(address)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            raise fail("NOT_FOUND", f"{path}: there is no such blob") from None
        except OSError as error:
            raise of_system(error, path) from None
        if hashlib.sha256(data).digest() != address:
            raise fail("CORRUPT", f"{path}: these are not the bytes that were stored; restore it from a backup")
        return data

    def _path(self, address: bytes) -> str:
        if len(address) != ADDRESS_BYTES:
            raise ValueError(f"an address has {ADDRESS_BYTES} bytes, not {len(address)}")
        text = address.hex()
        return f"{self._directory}/{text[:2]}/{text[2:4]}/{text}"


class MemoryBlobStore:
    """Implements `BlobStore` without a disk, for simulation."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, bytes] = {}

    async def put(self, data: bytes) -> bytes:
        address = hashlib.sha256(data).digest()
        self._blobs[address] = data
        return address

    async def get(self, address: bytes) -> bytes:
        data = self._blobs.get(address)
        if data is None:
            raise fail("NOT_FOUND", f"there is no blob {address.hex()}")
        return data
