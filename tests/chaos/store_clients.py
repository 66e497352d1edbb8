"""Clients of a node directory: their writes go to the owners of the partitions."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from atomlog.kernel.settings import Settings
from tests.processes.clients import STOP, Client, Journal, opened

PAUSE_S: Final = 0.2  # leaves processors to everybody else


def main(
    directory: str, folder: str, numbers: Sequence[int], seed: str, spaces: Mapping[str, str], shared: Mapping[str, Any]
) -> None:
    """A process with these clients, each in its space with the atom that it shares."""

    async def running() -> None:
        journals = {number: Journal(Path(folder), number) for number in numbers}
        for journal in journals.values():
            journal.open()
        store = await opened(directory, Settings.from_environment(os.environ))
        async with store, asyncio.TaskGroup() as tasks:
            for number, journal in journals.items():
                name = str(number)
                client = Client(store, journal, number, seed, spaces[name], shared[name], pause_s=PAUSE_S)
                tasks.create_task(client.run(Path(folder, STOP)))

    asyncio.run(running())
