"""`asyncio.timeout` for callers that may all take equally long: one timer for all of them instead of one each."""

import asyncio
from collections import deque
from types import TracebackType


class Deadlines:
    """Deadlines `seconds` from when each is entered, so in the order in which they are entered."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> "Deadline":
        """`with deadlines.begin():` raises TimeoutError when what is inside takes too long. Only in a task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline is of a task")
        loop = asyncio.get_running_loop()
        deadline = Deadline(self, task, loop.time() + self._seconds)
        self._running.append(deadline)
        if self._timer is None:
            self._timer = loop.call_at(deadline.at_s, self._expire, loop)
        return deadline

    def ended(self) -> None:
        """The first ones are forgotten as soon as they are over, so that their number is that of the callers."""
        running = self._running
        while running and running[0].is_over:
            running.popleft()
        if not running and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for deadline in self._running:
            if deadline.at_s > loop.time():
                self._timer = loop.call_at(deadline.at_s, self._expire, loop)
                return
            deadline.expire()


class Deadline:
    """One of them; see `Deadlines.begin`."""

    __slots__ = ("_all", "_cancelling", "_is_expired", "_task", "at_s", "is_over")

    def __init__(self, all_: Deadlines, task: "asyncio.Task[object]", at_s: float) -> None:
        self._all = all_
        self._task: asyncio.Task[object] | None = task
        self._cancelling = task.cancelling()
        self._is_expired = False
        self.at_s = at_s
        self.is_over = False

    def expire(self) -> None:
        if self._task is not None and not self._is_expired:
            self._is_expired = True
            self._task.cancel()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None  # it has its result, and an earlier deadline may keep this one for long
        assert task is not None, "left twice"
        self.is_over = True
        self._all.ended()
        # As asyncio.timeout does: only a cancellation that is this deadline's own becomes a TimeoutError.
        if self._is_expired and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
