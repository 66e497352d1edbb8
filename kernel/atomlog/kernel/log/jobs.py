"""A blocking call in a worker that can be waited for even after its awaiting task was cancelled.

A cancelled await leaves the thread running. Whoever wants to go on (the next append, a release) must know that the
thread does not touch the file any more.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from atomlog.kernel.ports import Workers

T = TypeVar("T")


class Job(Generic[T]):
    """Runs once, or never. `result` is there when the call has returned, whoever waited for it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._running = threading.Lock()
        self._abandoned = False
        self.result: T | None = None

    async def run(self, workers: Workers) -> T:
        """The call's result or exception. Cancelling this leaves the call to itself: see `settle`."""
        return await workers.run(self._run)

    def settle(self) -> None:
        """Blocks until the call is over, or sees to it that it never starts."""
        with self._running:
            self._abandoned = True

    def _run(self) -> T:
        with self._running:
            if self._abandoned:
                raise RuntimeError("the job was given up before it started")
            self._abandoned = True
            self.result = self._call()
            return self.result
