"""Which kind of character each code point is, as far as word and character n-grams need to know."""

import unicodedata
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

CODE_POINTS: Final = 0x110000
NEITHER: Final = 0  # spaces, punctuation, symbols, surrogates: they only separate
WORD: Final = 1  # letters, digits and marks of scripts that part words by spaces
IDEOGRAPH: Final = 2  # written without spaces: kanji, hangul
HIRAGANA: Final = 3
KATAKANA: Final = 4
_UNKNOWN: Final = 255

_RANGES: Final[Mapping[tuple[int, int], int]] = {
    (0x3041, 0x3096): HIRAGANA,
    (0x309D, 0x309F): HIRAGANA,
    (0x30A1, 0x30FA): KATAKANA,
    (0x30FC, 0x30FF): KATAKANA,
    (0x31F0, 0x31FF): KATAKANA,
    (0x3005, 0x3007): IDEOGRAPH,
    (0x1100, 0x11FF): IDEOGRAPH,
    (0x3400, 0x4DBF): IDEOGRAPH,
    (0x4E00, 0x9FFF): IDEOGRAPH,
    (0xAC00, 0xD7A3): IDEOGRAPH,
    (0xF900, 0xFAFF): IDEOGRAPH,
    (0x20000, 0x3FFFF): IDEOGRAPH,
}


class Scripts:
    """A table over all code points that is filled as characters are met."""

    def __init__(self) -> None:
        self._table = np.full(CODE_POINTS, _UNKNOWN, dtype=np.uint8)

    def of(self, codes: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The kind of each code point, in an array of the same shape."""
        kinds = self._table[codes]
        if (kinds == _UNKNOWN).any():
            for code in np.unique(codes[kinds == _UNKNOWN]).tolist():
                self._table[code] = _kind_of(code)
            kinds = self._table[codes]
        return kinds


def _kind_of(code: int) -> int:
    for (first, last), kind in _RANGES.items():
        if first <= code <= last:
            return kind
    return WORD if unicodedata.category(chr(code))[0] in "LNM" else NEITHER
