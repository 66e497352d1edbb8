"""The encoder port: text to float32 rows of one vector space."""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from atomlog.kernel.errors import fail
from atomlog.kernel.vector_spaces import VectorSpace

Vector = NDArray[np.float32]  # (dim,)
Matrix = NDArray[np.float32]  # (n, dim)

TEXT: Final = "text/plain"


class Encoder(Protocol):
    """Encodes into one space. Raises OSError (TimeoutError is one) or an `unavailable` error when it is down."""

    @property
    def space(self) -> VectorSpace: ...
    @property
    def media_types(self) -> frozenset[str]:
        """What it can encode; empty when vectors only come with atoms and queries."""
        ...

    async def encode_passages(self, texts: Sequence[str]) -> Matrix:
        """float32 (len(texts), dim), row i for text i whatever the others are; all zeros: nothing to encode in it."""
        ...

    async def encode_query(self, text: str) -> Vector:
        """float32 (dim,); all zeros: nothing to encode in it."""
        ...


class SuppliedEncoder:
    """A space whose vectors come with the atom and with the query. It encodes nothing."""

    media_types: frozenset[str] = frozenset()

    def __init__(self, space: VectorSpace) -> None:
        self._space = space

    @property
    def space(self) -> VectorSpace:
        return self._space

    async def encode_passages(self, texts: Sequence[str]) -> Matrix:
        raise self._refusal()

    async def encode_query(self, text: str) -> Vector:
        raise self._refusal()

    def _refusal(self) -> Exception:
        message = f"no encoder makes vectors of the space {self._space.id}; give a vector instead of a text"
        detail = {"path": "vector", "code": "INVALID_INPUT", "message": message}
        return fail("INVALID_INPUT", message, details=[detail])
