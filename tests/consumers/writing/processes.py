"""Processes that hold a store, forked from one that has imported everything, and killed at will."""

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from atomlog.consumers.store import AsyncStore

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.consumers.writing.processes"])


def hold(directory: str, told: Connection) -> None:
    """Hold the store until killed."""

    async def holding() -> None:
        store = await AsyncStore.open(directory, create=False, projections=())
        told.send(store._writing.holder is not None)
        await asyncio.Event().wait()

    asyncio.run(holding())


class Holder:
    """Another process that holds the store of a directory."""

    def __init__(self, directory: str) -> None:
        told, tells = FORKS.Pipe(duplex=False)
        self._process: BaseProcess = FORKS.Process(target=hold, args=(directory, tells), daemon=True)
        self._process.start()
        tells.close()
        assert told.recv() is True, "somebody else holds the store"
        told.close()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.join()
        self._process.close()
