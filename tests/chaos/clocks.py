"""Processes whose wall clock is off: forked from a zygote that has a library of ours preloaded (made with `cc`)."""

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.zygote import Zygote, zygote

CLOCK_FILE: Final = "ATOMLOG_TEST_CLOCK_FILE"  # in the environment of a process


class ClockFile:
    """By how much the clocks of the processes that were given this file are off; nothing at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.put_off(0)

    def put_off(self, ahead_s: int) -> None:
        """From now on; behind when negative."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(ahead_s.to_bytes(8, sys.byteorder, signed=True))


def missing() -> str | None:
    """What this machine lacks to put a clock off."""
    return "no C compiler (cc)" if shutil.which("cc") is None else None


@cache
def shifting_zygote() -> Zygote:
    """Its processes have a clock that `CLOCK_FILE` puts off; where there is no compiler, the ordinary one."""
    if missing() is not None:
        return zygote()
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = f"{folder}/shifted_clock.so"
    source = str(Path(__file__).with_name("shifted_clock.c"))
    command = ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    made = Zygote({"LD_PRELOAD": library})
    atexit.register(made.close)
    return made


def tell(path: str) -> None:
    """In a forked process: write down what time it has."""
    Path(path).write_text(f"{time.time()} {time.monotonic()}", "ascii")
