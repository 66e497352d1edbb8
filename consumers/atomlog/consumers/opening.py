"""What `AsyncStore.open` gives: to be awaited, or entered."""

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """`store = await opening` opens and leaves closing to the caller; `async with opening as store:` closes, too."""

    def __init__(self, opened: Coroutine[Any, Any, T]) -> None:
        self._opened = opened
        self._store: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opened.__await__()

    async def __aenter__(self) -> T:
        self._store = await self._opened
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()
