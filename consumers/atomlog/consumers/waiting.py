"""Waiting for one of several things, with the time of the `Clock` port."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from atomlog.kernel.ports import Clock


async def first_of(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Return when one of them has ended, the others cancelled and ended; raises what the ended ones raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class Signal:
    """Something has changed: wakes everybody who waits, and nobody who comes later."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    def wait(self) -> Coroutine[Any, Any, Any]:
        """Ends at the next `notify` after this call, not after its first await."""
        return self._event.wait()

    async def wait_within(self, clock: Clock, seconds: float) -> None:
        """Until the next `notify`, or for `seconds`."""
        await first_of(self._event.wait(), clock.sleep(max(0.0, seconds)))
