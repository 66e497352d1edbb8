"""What may happen to consumers and to what they derived, and to clients."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from atomlog.consumers.store import AsyncStore
from tests.chaos.cluster import SETTINGS, Cluster
from tests.processes.disks import small_disk
from tests.support.commands import atomlog, until
from tests.support.zygote import Forked

INDEX: Final = "ids"  # whose directory is deleted and damaged
DISK_BYTES: Final = 48 * 1024 * 1024
ON_THE_DISK: Final = ("ids", "relations")
ENOUGH_BYTES: Final = 10_000  # to be worth damaging
PATCH: Final = b"not what was written here"


async def freeze_a_consumer(cluster: Cluster) -> None:
    process = cluster.consumers[cluster.chance.choice(sorted(cluster.consumers))]
    process.send_signal(signal.SIGSTOP)
    try:
        await cluster.answers(40)
    finally:
        process.send_signal(signal.SIGCONT)


async def kill_a_consumer(cluster: Cluster) -> None:
    name = cluster.chance.choice(sorted(cluster.consumers))
    await cluster.consumers[name].killed()
    await cluster.start_consumer(name)


async def kill_the_clients(cluster: Cluster) -> None:
    """One process of each kind: the next one asks again what was asked and not told."""
    for kind in ("store", "inbox"):
        name = cluster.chance.choice(sorted(name for name in cluster.clients if kind in name))
        client = cluster.clients[name]
        await client.process.killed()
        await cluster.start_clients(name, client.target, client.numbers)


async def delete_the_directory_of_an_index(cluster: Cluster) -> None:
    """The consumer is killed, what it derived is gone: it derives it again."""
    await cluster.consumers[INDEX].killed()
    shutil.rmtree(await _directory(cluster))
    await cluster.start_consumer(INDEX)


async def damage_the_directory_of_an_index(cluster: Cluster) -> None:
    """The consumer is killed, every file of its index is overwritten in the middle: it says so, and is rebuilt."""
    index = await _directory(cluster)
    await until(
        lambda: any(path.stat().st_size > ENOUGH_BYTES for path in index.glob("*/db/*.log")), "there is an index"
    )
    await cluster.consumers[INDEX].killed()
    log = cluster.folder / f"{INDEX}.log"
    said_before = log.stat().st_size
    for path in index.glob("*/db/*"):
        if path.is_file() and path.name not in ("LOCK", "IDENTITY"):
            _damage(path)
    directory = await cluster.kernels.directory("replica-b")
    process = await cluster.follow(INDEX, [INDEX], directory)
    await until(lambda: b"CORRUPT" in log.read_bytes()[said_before:], f"damage is named in {log}")
    process.terminate()
    await process.wait()
    rebuilt = await atomlog("rebuild", INDEX, "--force", "--store", str(directory), environment=SETTINGS)
    assert rebuilt.code in (0, 70), rebuilt.out + rebuilt.err  # 70: the one before was not the same
    await cluster.start_consumer(INDEX)


async def fill_the_disk_of_a_consumer(cluster: Cluster) -> None:
    """A third replica on a small disk, which is full for a while: started again when it is not, it catches up."""
    number = sum(1 for _ in cluster.folder.glob("disk-*"))
    folder = cluster.folder / f"disk-{number}"
    folder.mkdir()
    with small_disk(folder, DISK_BYTES) as disk:
        directory = await cluster.kernels.directory(str(disk.relative_to(cluster.folder) / "node"))
        process = await _follow_on(cluster, folder.name, directory)
        try:
            await _current(directory)
            filler = disk / "filler"
            _fill(disk, filler)
            await cluster.answers(100)
            filler.unlink()
            process.terminate()  # an index that could not be synced goes on when it is opened anew
            await process.wait()
            process = await _follow_on(cluster, folder.name, directory)
            await _current(directory)
            verified = await atomlog("verify", *ON_THE_DISK, "--store", str(directory), environment=SETTINGS)
            assert verified.code == 0, verified.out + verified.err
        finally:
            process.terminate()
            await process.wait()


async def _follow_on(cluster: Cluster, name: str, directory: Path) -> Forked:
    return await cluster.follow(name, ON_THE_DISK, directory, ATOMLOG_DISK_RESERVE_BYTES="0")


def _fill(disk: Path, filler: Path) -> None:
    with filler.open("ab") as file:
        while (size := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > 0:
            with suppress(OSError):  # others take space meanwhile
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)


async def _current(directory: Path) -> None:
    async with await AsyncStore.open(str(directory), create=False, projections=ON_THE_DISK, follow=False) as store:
        await store.wait_until_current(60.0)


def _damage(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(max(0, size // 2 - len(PATCH) // 2))
        file.write(PATCH[: size or None])


async def _directory(cluster: Cluster) -> Path:
    return Path(await cluster.kernels.directory("replica-b"), "projections", INDEX)
