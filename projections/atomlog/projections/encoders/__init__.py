"""Encoders: what makes vectors of text. A new one is a class with `Encoder`'s methods and a row in `encoder_of`."""

from collections.abc import Sequence

from atomlog.kernel.ports import Workers
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.encoders.hashing import FeatureHasher
from atomlog.projections.encoders.port import TEXT, Encoder, Matrix, SuppliedEncoder, Vector

__all__ = ["TEXT", "Encoder", "HashingEncoder", "Matrix", "SuppliedEncoder", "Vector", "encoder_of"]


class HashingEncoder:
    """The default encoder: feature hashing of words and characters, Japanese and English alike, no dependency.

    Rows have length 1. Passages are hashed through `workers`, a query at once (about 0.4 ms).
    """

    media_types = frozenset({TEXT})

    def __init__(self, space: VectorSpace, workers: Workers) -> None:
        self._space = space
        self._workers = workers
        self._hasher = FeatureHasher(space.dim)

    @property
    def space(self) -> VectorSpace:
        return self._space

    async def encode_passages(self, texts: Sequence[str]) -> Matrix:
        return await self._workers.run(lambda: self._hasher.rows(texts))

    async def encode_query(self, text: str) -> Vector:
        row: Vector = self._hasher.rows([text])[0]
        return row


def encoder_of(space: VectorSpace, workers: Workers) -> Encoder:
    """The encoder of a space by its name and version; one that takes supplied vectors when none is known."""
    if (space.encoder, space.version) == ("hashing", "1"):
        return HashingEncoder(space, workers)
    return SuppliedEncoder(space)
