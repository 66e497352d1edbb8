"""The Python face: `Store`, and `AsyncStore` with the same methods, awaited."""

from atomlog.client.sync import Store
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError

__all__ = ["AsyncStore", "AtomlogError", "Store"]
