"""Making an embedded store: by one process, whoever else begins at the same moment, and anew after one that was killed.

The directory is locked while the store is made in it. `store.json.making` stands there until everything else is
durable, and becomes `store.json` by one rename: a directory with the second name is a store, one with only the first
is where a process was killed before anybody could write anything.
"""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from atomlog.consumers.machine import KAFKA_TOML, MASTER_KEY, NODE_PEM, Machine
from atomlog.consumers.paths import checked_path
from atomlog.consumers.store_config import (
    FILE,
    PARTITIONS,
    PARTITIONS_MAX,
    SHARD_ROWS,
    SHARD_ROWS_MAX,
    VECTOR_SPACES,
    StoreConfig,
    check_count,
)
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.log.embedded import create_log
from atomlog.kernel.ports import Files
from atomlog.kernel.sealing import create_master_key, load_master_key
from atomlog.kernel.vector_spaces import parse_vector_space

MAKING: Final = f"{FILE}.making"
WAIT_SECONDS_MAX: Final = 10.0  # for another process that makes the same store
POLL_SECONDS: Final = 0.02

_WRITTEN: Final = (MAKING, MASTER_KEY, NODE_PEM, KAFKA_TOML)
_TEMPORARY: Final = re.compile(rf"({'|'.join(map(re.escape, _WRITTEN))})\.[0-9a-f]{{8}}\.tmp")


def create_store(
    directory: str,
    *,
    partitions: int = PARTITIONS,
    shard_rows: int = SHARD_ROWS,
    vector_spaces: tuple[str, ...] = VECTOR_SPACES,
    master_key_file: str | None = None,
    machine: Machine,
) -> StoreConfig:
    """Make a store in an absent or empty directory, durable on return. Nothing is claimed.

    Raises INVALID_INPUT when the directory is in use, STORE_LOCKED when another process makes a store in it,
    STORE_READ_ONLY, and what a wrong argument deserves.
    """
    files = machine.files
    directory = checked_path(directory, "directory")
    key_path = _key_path(files, directory, master_key_file)
    check_count(partitions, "partitions", PARTITIONS_MAX)
    check_count(shard_rows, "shard_rows", SHARD_ROWS_MAX)
    for index, space in enumerate(vector_spaces):
        parse_vector_space(space, f"vector_spaces[{index}]")
    config = StoreConfig(
        log_id=machine.randomness.token(16),
        partitions=partitions,
        shard_rows=shard_rows,
        vector_spaces=vector_spaces,
    )
    with making(files, directory):
        config.save(files, directory, MAKING)
        if load_master_key(files, key_path) is None:
            create_master_key(files, machine.randomness, key_path)
        create_log(files, directory, config.log_id, partitions)
        finish(files, directory)
    return config


def finish(files: Files, directory: str) -> None:
    """Last: a directory is a store when store.json says so."""
    files.replace(f"{directory}/{MAKING}", f"{directory}/{FILE}")
    files.sync_directory(directory)


async def create_unless_there(directory: str, *, master_key_file: str | None, machine: Machine) -> None:
    """`create_store` with defaults where a store is to be made; waits while another process makes it."""
    clock = machine.clock
    deadline_us = clock.monotonic_us() + int(WAIT_SECONDS_MAX * 1_000_000)
    while is_to_be_made(machine.files, directory):
        try:
            create_store(directory, master_key_file=master_key_file, machine=machine)
        except AtomlogError as error:
            if error.code == "STORE_LOCKED" and clock.monotonic_us() < deadline_us:
                await clock.sleep(POLL_SECONDS)
            elif is_to_be_made(machine.files, directory):
                raise


@contextmanager
def making(files: Files, directory: str, *, shared: bool = False) -> Iterator[None]:
    """The locked directory, without what an interrupted making left in it. `shared`: it is to be a node.

    INVALID_INPUT when it is in use, or was to become a store of the other kind.
    """
    try:
        if not is_to_be_made(files, directory):
            raise _in_use(directory)
        files.make_directory(directory)
        lock = files.open(directory, write=False)
        try:
            if not lock.lock():
                message = f"{directory}: another process is making a store here; wait for it"
                raise fail("STORE_LOCKED", message, retry_after_ms=1_000)
            if not is_to_be_made(files, directory):  # another process made it before the lock was taken
                raise _in_use(directory)
            _check_kind(files, directory, shared=shared)
            _clear(files, directory)
            yield
        finally:
            lock.close()
    except NotADirectoryError:
        raise fail("INVALID_INPUT", f"{directory} is a file; a store is a directory") from None
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
            raise
        raise fail("STORE_READ_ONLY", f"{directory} cannot be written: {error.strerror}") from None


def is_to_be_made(files: Files, directory: str) -> bool:
    """Absent, empty, or left by a process that was killed while it made a store."""
    if not files.exists(directory):
        return True
    try:
        return _is_unfinished(files.list(directory))
    except NotADirectoryError:
        return False  # what it is instead is said when its configuration is looked for


def _is_unfinished(names: Sequence[str]) -> bool:
    return FILE not in names and (MAKING in names or all(_TEMPORARY.fullmatch(name) for name in names))


def unfinished(files: Files, directory: str) -> StoreConfig | None:
    """What an interrupted making was to make; None when there is nothing of it, or nothing that can be read."""
    try:
        return StoreConfig.load(files, directory, MAKING)
    except AtomlogError:
        return None


def _check_kind(files: Files, directory: str, *, shared: bool) -> None:
    begun = unfinished(files, directory)
    if begun is not None and (begun.kafka is not None) != shared:
        kind = "a node of a shared store (`atomlog init --kafka …`)" if begun.kafka is not None else "an embedded store"
        message = f"{directory}: {kind} was to be made here and was interrupted; do that again, or empty the directory"
        raise fail("INVALID_INPUT", message)


def _clear(files: Files, directory: str) -> None:
    """A master key that is there may be the only copy of somebody's: it is kept, and used."""
    for name in files.list(directory):
        if _TEMPORARY.fullmatch(name):
            files.remove(f"{directory}/{name}")
        elif name == "log":
            files.remove_tree(f"{directory}/{name}")


def _in_use(directory: str) -> AtomlogError:
    return fail("INVALID_INPUT", f"{directory} is not empty; a store is made in an absent or empty directory")


def _key_path(files: Files, directory: str, given: str | None) -> str:
    if given is None:
        return f"{directory}/{MASTER_KEY}"
    path = checked_path(given, "master_key_file")
    folder = path.rpartition("/")[0]
    if folder not in ("", directory) and not files.exists(folder):
        raise invalid("master_key_file", f"{folder}: there is no such directory")
    return path
