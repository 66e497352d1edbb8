"""A process that follows one projection until its stdin ends: `python -m tests.consumers.follow_process ROOT KIND`.

Prints a line a moment when something happened; `slow` sleeps between two applies so that a test can kill it midway.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from atomlog.consumers.context import ProjectionKind
from atomlog.consumers.follower import Follower
from tests.consumers.worlds import World, ids, toy


def kind_named(name: str, partitions: int) -> ProjectionKind:
    return ids(partitions) if name == "ids" else toy(partitions)


async def follow(path: Path, name: str) -> None:
    world = World.open(path)
    kind: Any = kind_named(name, world.config.partitions)
    follower = await Follower.start(world.context, world.directory(name), kind)
    print(f"following {follower.positions()[0]}", flush=True)
    stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await stopped
    await follower.close()
    await world.close()
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(follow(Path(sys.argv[1]), sys.argv[2]))
