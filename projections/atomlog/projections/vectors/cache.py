"""Embeddings by (space, text), kept apart from the projection so that a rebuild does not pay for them again.

Key: the space's tag (8 bytes) ‖ SHA-256 of the text in UTF-8 (lone surrogates as they are); value: what the encoder
gave, float32 little-endian.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import Kv
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.vectors.blocks import F32
from atomlog.projections.vectors.layout import space_tag
from atomlog.projections.vectors.scoring import Vector


class EmbeddingCache:
    """Over a store of its own, which the caller closes. What is found damaged is as if it were not there."""

    def __init__(self, kv: Kv) -> None:
        self._kv = kv
        self.fault: str | None = None  # what was found damaged in it last

    def find(self, space: VectorSpace, texts: Sequence[str]) -> dict[str, Vector]:
        """Those of the texts that are known."""
        values: Sequence[bytes | None] = [None] * len(texts)
        with self._if_sound():
            values = self._kv.get_many([_key(space, text) for text in texts])
        return {
            text: np.frombuffer(value, dtype=F32)
            for text, value in zip(texts, values, strict=True)
            if value is not None and len(value) == space.dim * F32.itemsize
        }

    def add(self, space: VectorSpace, found: Mapping[str, Vector]) -> None:
        with self._if_sound():
            self._kv.write([(_key(space, text), row.astype(F32).tobytes()) for text, row in found.items()])

    def sync(self) -> None:
        with self._if_sound():
            self._kv.sync()

    @contextmanager
    def _if_sound(self) -> Iterator[None]:
        """Embeddings can be made again: damage here costs time, and nothing else."""
        try:
            yield
        except AtomlogError as error:
            if error.code != "CORRUPT":
                raise
            self.fault = error.message


def _key(space: VectorSpace, text: str) -> bytes:
    return space_tag(space.id) + hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
