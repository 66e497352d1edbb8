"""An event loop without a clock, a selector or a thread: time jumps, and what runs next is drawn from a seed.

When nothing is ready, time jumps to the next timer. Each callback belongs to the process that is in its context; those
of a dead process never run again, as after a SIGKILL, and those of a stopped one wait until it goes on.
"""

import asyncio
import contextvars
import heapq
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from types import AsyncGeneratorType, CoroutineType
from typing import Any, Final, TypeVar

T = TypeVar("T")

LAST_WORDS_MAX: Final = 100
STEP_US: Final = 20  # what one callback takes
PROCESS: "contextvars.ContextVar[Life | None]" = contextvars.ContextVar("process", default=None)


class Stuck(AssertionError):
    """Nothing will ever happen again, or things happen for ever."""


class Life:
    """A process as the loop sees it. `tasks`: kept, so that none of a dead process is ended by the collector."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_stopped = False
        self.stopped_handles: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def add(self, task: "asyncio.Task[Any]") -> None:
        if len(self.tasks) > 200 and not self.is_dead:
            self.tasks = [one for one in self.tasks if not one.done()]
        self.tasks.append(task)


class Handle:
    """A callback that is to run, now or at `when_us`."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "serial", "when_us")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
        serial: int,
        when_us: int,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.serial = serial
        self.when_us = when_us
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_us / 1_000_000

    def __lt__(self, other: "Handle") -> bool:
        return (self.when_us, self.serial) < (other.when_us, other.serial)


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs one simulation. `trace` is told of every callback; `errors` are what nobody waited for.

    `spread`: from how many of the oldest ready callbacks the next is drawn; 1 is the order of asyncio itself.
    """

    def __init__(self, chance: Random, trace: Callable[[str], None], *, spread: int, steps_max: int) -> None:
        self.us = 0
        self.steps = 0
        self.errors: list[str] = []
        self._chance = chance
        self._trace = trace
        self._spread = spread
        self._steps_max = steps_max
        self._ready: list[Handle] = []
        self._timers: list[Handle] = []
        self._serial = 0
        self._lives: list[Life] = []
        self._own = Life("world")
        self._is_over = False

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self.us / 1_000_000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        self._serial += 1
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, self._serial, 0)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self._timer(self.us + max(0, round(delay * 1_000_000)), callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self._timer(round(when * 1_000_000), callback, args, context)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[T]":
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        life = PROCESS.get() if context is None else context.get(PROCESS)
        (life or self._own).add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_over:
            self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_over

    def is_closed(self) -> bool:
        return self._is_over

    # ---- running

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Stuck when nothing is left to run before that, or too much was."""
        before = asyncio._get_running_loop()  # another test's loop, never
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work)
            while not task.done():
                self._step()
            return task.result()
        finally:
            self._end()
            asyncio._set_running_loop(before)

    def born(self, life: Life) -> contextvars.Context:
        """The context for everything that a new process does."""
        self._lives.append(life)
        context = contextvars.Context()
        context.run(PROCESS.set, life)
        return context

    def resume(self, life: Life) -> None:
        """A stopped process goes on."""
        life.is_stopped = False
        self._ready += life.stopped_handles
        life.stopped_handles = []

    def left(self) -> list[str]:
        """Tasks that are not done, of living processes and of the world."""
        lives = [self._own, *(life for life in self._lives if not life.is_dead)]
        return [f"{life.name}: {task.get_coro()!r}" for life in lives for task in life.tasks if not task.done()]

    def _timer(
        self, when_us: int, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> Handle:
        self._serial += 1
        handle = Handle(
            callback, args, contextvars.copy_context() if context is None else context, self._serial, when_us
        )
        heapq.heappush(self._timers, handle)
        return handle

    def _step(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and (timers[0].is_cancelled or _is_dead(timers[0])):
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is left to run")
            self.us = max(self.us, timers[0].when_us)
        while timers and timers[0].when_us <= self.us:
            handle = heapq.heappop(timers)
            if not handle.is_cancelled:
                ready.append(handle)
        choices = min(self._spread, len(ready))
        handle = ready.pop(int(self._chance.random() * choices) if choices > 1 else 0)
        if handle.is_cancelled:
            return
        life = handle.context.get(PROCESS)
        if life is not None:
            if life.is_dead:
                return
            if life.is_stopped:
                life.stopped_handles.append(handle)
                return
        self.steps += 1
        if self.steps > self._steps_max:
            raise Stuck(f"{self.steps} steps and no end")
        self.us += STEP_US
        self._trace(f"{self.us} {'world' if life is None else life.name} runs {handle.serial}")
        try:
            handle.context.run(handle.callback, *handle.args)
        except (KeyboardInterrupt, AssertionError):
            raise
        except BaseException as error:
            self.errors.append(f"a callback of {'the world' if life is None else life.name}: {error!r}")

    def _end(self) -> None:
        """Close what was left without running it: what dead processes never finished must not be seen as forgotten."""
        self._is_over = True
        with last_words_reach_nobody():
            for life in self._lives:
                life.is_dead = True
            for life in (self._own, *self._lives):
                for task in life.tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    if not task.done():
                        _close(task.get_coro())
                    elif not task.cancelled():
                        task.exception()
                life.tasks, life.stopped_handles = [], []
            self._ready, self._timers = [], []


@contextmanager
def last_words_reach_nobody() -> Iterator[None]:
    """What the collector hears from coroutines of dead processes is no error of whoever runs by then."""
    hook = sys.unraisablehook

    def only_others(said: Any) -> None:
        if isinstance(said.object, CoroutineType | AsyncGeneratorType):
            return
        hook(said)

    sys.unraisablehook = only_others
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _is_dead(handle: Handle) -> bool:
    life = handle.context.get(PROCESS)
    return life is not None and life.is_dead


def _close(coroutine: Any) -> None:
    """To its very end: what is left open would be closed by the collector, in whatever test runs by then."""
    for _ in range(LAST_WORDS_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it waits for something again
        except BaseException:
            return
        else:
            return
