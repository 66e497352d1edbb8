"""Sets of 32-bit numbers as roaring bitmaps. The only module that imports pyroaring.

Its serialised form has no checksum and its reader takes trailing bytes, so that stored ones are compared with what
they decode to. They live in stores that check their blocks.
"""

from collections.abc import Iterable, Iterator, Sequence

from pyroaring import BitMap

from atomlog.kernel.errors import fail


class Bitmap:
    """A mutable set of numbers in [0, 2^32). Iterates in ascending order; operators make new sets."""

    __slots__ = ("_bits",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._bits = BitMap(numbers)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Bitmap":
        """CORRUPT unless the bytes are exactly what `to_bytes` made."""
        try:
            bits = BitMap.deserialize(raw)
        except (IndexError, ValueError) as error:
            raise fail("CORRUPT", f"a bitmap of {len(raw)} bytes is not readable: {error}") from None
        if bits.serialize() != raw:
            raise fail("CORRUPT", f"a bitmap of {len(raw)} bytes does not read back as it was written")
        return cls._of(bits)

    @classmethod
    def union(cls, sets: Sequence["Bitmap"]) -> "Bitmap":
        return cls._of(BitMap.union(*(one._bits for one in sets))) if sets else cls()

    @classmethod
    def _of(cls, bits: BitMap) -> "Bitmap":
        made = cls.__new__(cls)
        made._bits = bits
        return made

    def to_bytes(self) -> bytes:
        """The portable roaring format after run optimisation. Equal sets may differ: see `canonical_bytes`."""
        self._bits.run_optimize()
        return self._bits.serialize()

    def canonical_bytes(self) -> bytes:
        """The same for every history that led to the same numbers."""
        return Bitmap(self._bits.to_array()).to_bytes()

    def add(self, number: int) -> None:
        self._bits.add(number)

    def discard(self, number: int) -> None:
        self._bits.discard(number)

    def update(self, numbers: Iterable[int]) -> None:
        self._bits.update(numbers)

    def merge(self, other: "Bitmap") -> None:
        self._bits |= other._bits

    def copy(self) -> "Bitmap":
        return Bitmap._of(self._bits.copy())

    def __and__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap._of(self._bits & other._bits)

    def __or__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap._of(self._bits | other._bits)

    def __sub__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap._of(self._bits - other._bits)

    def __xor__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap._of(self._bits ^ other._bits)

    def __len__(self) -> int:
        return len(self._bits)

    def __iter__(self) -> Iterator[int]:
        return iter(self._bits)

    def __contains__(self, number: int) -> bool:
        return number in self._bits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bitmap) and self._bits == other._bits

    def __repr__(self) -> str:
        return f"Bitmap({len(self)} numbers)"
