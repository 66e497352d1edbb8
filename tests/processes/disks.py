"""Disks of a test's own: an ext4 image whose power can be cut, a small tmpfs that fills up. Root mounts them."""

import gc
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest

IMAGE_BYTES: Final = 1024 * 1024 * 1024  # nearly all of it holes: a store keeps a reserve free
NOTHING_LATER: Final = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
UNMOUNT_SECONDS_MAX: Final = 20.0
# No commit of the journal but by fsync.
MOUNT_OPTIONS: Final = "loop,commit=600,noatime"
MKFS: Final = ("mkfs.ext4", "-q", "-F", "-m", "0", "-N", "8192", "-J", "size=16", "-E", NOTHING_LATER)


class Disk:
    """An image file and where it is mounted. What `cut` copies is what the power would have left."""

    def __init__(self, image: Path, place: Path) -> None:
        """Use `disk`, or `cut`."""
        self.image = image
        self.place = place

    @contextmanager
    def cut(self, name: str) -> Iterator["Disk"]:
        """The disk as it is after the power went: the image without the file system's cache, its journal replayed.

        Every process that writes must stand still.
        """
        image = self.image.with_name(f"{name}.img")
        _run("cp", "--sparse=always", str(self.image), str(image))
        with _mounted(Disk(image, self.place.with_name(name))) as after:
            yield after
        image.unlink()


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """An empty one. Its processes must have ended before this does."""
    require_disks()
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    _run(*MKFS, str(image))
    with _mounted(Disk(image, folder / "disk")) as made:
        yield made


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A directory that takes no more than so many bytes."""
    require_small_disks()
    place = folder / "small"
    with _mount(place, "-t", "tmpfs", "-o", f"size={size_bytes}", "atomlog-test"):
        yield place


def require_disks() -> None:
    if (missing := _missing_for_images()) is not None:
        pytest.skip(f"POWER CUT IS NOT TESTED: {missing}")


def require_small_disks() -> None:
    if (missing := missing_for_small_disks()) is not None:
        pytest.skip(f"A FULL DISK IS NOT TESTED: {missing}")


@contextmanager
def _mounted(made: Disk) -> Iterator[Disk]:
    with _mount(made.place, "-o", MOUNT_OPTIONS, str(made.image)):
        device = _run("findmnt", "-n", "-o", "SOURCE", str(made.place)).strip()
        _run("losetup", "--direct-io=on", device)  # what the file system has handed over stands in the image at once
        yield made


@contextmanager
def _mount(place: Path, *arguments: str) -> Iterator[None]:
    place.mkdir()
    _run("mount", *arguments, str(place))
    try:
        yield
    finally:
        gc.collect()  # maps of closed files go with the objects that had them
        _unmount(place)


def _unmount(place: Path) -> None:
    deadline = time.monotonic() + UNMOUNT_SECONDS_MAX
    while True:
        try:
            _run("umount", str(place))
            return
        except AssertionError:
            if time.monotonic() > deadline:
                _run("umount", "--lazy", str(place))  # a process that outlived its test goes on, the mount does not
                raise
        time.sleep(0.02)  # RocksDB removes its last files in the background


@cache
def _missing_for_images() -> str | None:
    """What this machine lacks to mount an image; None when one could be mounted."""
    if (missing := _missing_tools(("mkfs.ext4", "mount", "umount", "losetup", "findmnt", "cp"))) is not None:
        return missing
    return _try_to_mount(_image_that_mounts)


@cache
def missing_for_small_disks() -> str | None:
    """What this machine lacks for `small_disk`; None when there can be one."""
    return _missing_tools(("mount", "umount")) or _try_to_mount(lambda folder: ("-t", "tmpfs", "none"))


def _missing_tools(names: Sequence[str]) -> str | None:
    if os.geteuid() != 0:
        return "mounting needs root"
    absent = [name for name in names if shutil.which(name) is None]
    return f"{', '.join(absent)} not found" if absent else None


def _image_that_mounts(folder: Path) -> Sequence[str]:
    image = folder / "try.img"
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    _run(*MKFS, str(image))
    return ("-o", MOUNT_OPTIONS, str(image))


def _try_to_mount(arguments: Callable[[Path], Sequence[str]]) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _mount(Path(folder, "try"), *arguments(Path(folder))):
                return None
        except AssertionError as error:
            return str(error)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
