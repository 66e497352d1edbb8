"""The event loop of the simulation, moved by hand: so many callbacks, or until something is done."""

import asyncio
import heapq
import math
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from tests.simulation.loop import PROCESS, Life, SimulatedLoop
from tests.statemachine.checkers import CheckFailed

T = TypeVar("T")
STEPS_MAX = 5_000_000
SPREAD = 4  # the next callback is drawn from so many
BUSY_MAX = 100_000  # callbacks while time passes
WORK_MAX = 20_000  # callbacks that one awaited piece of work may take


class SteppedLoop(SimulatedLoop):
    def __init__(self, chance: Random) -> None:
        super().__init__(chance, lambda _: None, spread=SPREAD, steps_max=STEPS_MAX)

    def turns(self, count: int) -> None:
        """Up to `count` callbacks that are ready; time stands still but for what they take."""
        with self._running():
            for _ in range(count):
                if not self._ready:
                    return
                self._step()

    def pass_time(self, us: int) -> None:
        """Everything that happens meanwhile."""
        until, steps = self.us + us, 0
        with self._running():
            while self._next_us() <= until or (self._ready and self.us <= until):
                self._step()
                steps += 1
                if steps > BUSY_MAX:
                    raise CheckFailed("everything_is_answered", f"{steps} callbacks in {us} µs, and no end")
            self.us = max(self.us, until)

    def _next_us(self) -> float:
        """When the next timer is due."""
        while self._timers:
            life = self._timers[0].context.get(PROCESS)
            if not self._timers[0].is_cancelled and not (life and life.is_dead):
                break
            heapq.heappop(self._timers)
        return self._timers[0].when_us if self._timers else math.inf

    def until(self, work: Coroutine[Any, Any, T], life: Life | None = None) -> T:
        """What `work` gives, done in the process `life`, or in none."""
        with self._running():
            task = self.begin(work, life)
            for _ in range(WORK_MAX):
                if task.done():
                    return task.result()
                self._step()
        raise AssertionError(f"no end: {work!r}")

    def begin(self, work: Coroutine[Any, Any, T], life: Any = None) -> "asyncio.Task[T]":
        """A task that goes on whenever the loop does."""
        return self.create_task(work, context=None if life is None else life.context)

    def end(self) -> None:
        with self._running():
            self._end()

    @contextmanager
    def _running(self) -> Iterator[None]:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)
