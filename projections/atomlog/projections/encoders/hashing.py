"""Text to vectors by feature hashing alone: no model, no files, the same bytes everywhere.

A text becomes a bag of features: words, the 3- to 5-grams inside them, pairs of neighbouring words, and for scripts
without spaces single characters, pairs and triples. Each feature adds its weight, with a sign, at one dimension; both
come from a hash of the feature. All is integer arithmetic up to the last division, so that neither the order of a
batch nor its other texts can change a bit of a row.
"""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from atomlog.projections.encoders.scripts import HIRAGANA, KATAKANA, NEITHER, WORD, Scripts

U64 = NDArray[np.uint64]
Ints = NDArray[np.int64]

PIECE_CHARACTERS: Final = 16_384  # longer texts are the sum of such pieces
GROUP_CHARACTERS: Final = 65_536  # pieces hashed in one go: a bound on memory (some 30 MB)
_ONE: Final = 1 << 16  # of fixed-point weights
_BASE: Final = 0x9E3779B97F4A7C15  # odd, so that its powers have inverses modulo 2^64
_SALT: Final = np.uint64(0xD6E8FEB86659FD93)
_TF_MAX: Final = 65_536

# Weights, chosen on the development halves of SciFact and JSQuAD.
_WORD_WEIGHT: Final = 1.0
_GRAM_WEIGHT: Final = 1.0  # divided by the square root of how many of its length the word has
_PAIR_WEIGHT: Final = 0.3  # of two neighbouring words
_SINGLE_WEIGHT, _DOUBLE_WEIGHT, _TRIPLE_WEIGHT = 0.3, 1.0, 0.5  # characters of scripts without spaces
_HIRAGANA_FACTOR: Final = 0.5  # mostly endings and particles
_STOP_FACTOR: Final = 0.1
_LENGTH_FULL: Final = 6  # words shorter than this weigh less: short ones are common
_GRAMS: Final = (3, 4, 5)
_STOP_WORDS: Final = (  # of English, which carry no topic
    "a about after all also an and any are as at be because been between both but by can could did do does during "
    "each for from had has have he her his how i if in into is it its may more most no not of on only or our over "
    "she so some such than that the their them then there these they this those through to under very was we were "
    "what when where which while who will with within without would you your"
)


@dataclass(frozen=True, slots=True)
class _Features:
    """One entry an occurrence: which piece, the feature's hash, its fixed-point weight."""

    piece: Ints
    code: U64
    weight: Ints


class FeatureHasher:
    """Texts to L2-normalised float32 rows of `dim` numbers; a text without any feature gives a row of zeros."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._scripts = Scripts()
        self._stop = np.empty(0, dtype=np.uint64)
        self._stop = self._word_codes(_STOP_WORDS)
        self._damping = np.array(
            [0] + [round(_ONE * (1 + math.log(count))) for count in range(1, _TF_MAX + 1)], dtype=np.int64
        )

    def rows(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """An array (len(texts), dim). Any str will do, lone surrogates and NUL too."""
        sums = np.zeros((len(texts), self.dim), dtype=np.float64)
        for owners, pieces in _groups(texts):
            for owner, row in zip(owners, self._sums(pieces), strict=True):
                sums[owner] += row
        norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        return (sums / np.where(norms == 0, 1, norms)).astype(np.float32)

    def _sums(self, pieces: Sequence[str]) -> NDArray[np.float64]:
        """The unnormalised row of each piece; its numbers are integers."""
        found = self._features(pieces)
        shape = (len(pieces), self.dim)
        if found.code.size == 0:
            return np.zeros(shape)
        # Sorted by piece, then feature: the 48 upper bits of a hash tell features of one piece apart well enough.
        keys = (found.piece.astype(np.uint64) << np.uint64(48)) | (found.code >> np.uint64(16))
        order = np.argsort(keys)
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        counts = np.diff(np.append(starts, keys.size))
        weights = np.add.reduceat(found.weight[order], starts) // counts
        damped = weights * self._damping[np.minimum(counts, _TF_MAX)] // _ONE
        features = keys[starts] & np.uint64((1 << 48) - 1)
        signs = np.where(features & np.uint64(1), 1, -1)
        columns = ((features >> np.uint64(1)) % np.uint64(self.dim)).astype(np.int64)
        cells = (keys[starts] >> np.uint64(48)).astype(np.int64) * self.dim + columns
        added = np.bincount(cells, weights=damped * signs, minlength=len(pieces) * self.dim)
        return added.astype(np.float64).reshape(shape)

    def _features(self, pieces: Sequence[str]) -> _Features:
        text = _Text(pieces, self._scripts)
        parts = [*self._word_features(text), *_character_features(text)]
        return _Features(
            np.concatenate([part.piece for part in parts]),
            np.concatenate([part.code for part in parts]),
            np.concatenate([part.weight for part in parts]),
        )

    def _word_features(self, text: "_Text") -> Iterator[_Features]:
        starts, stops = text.words()
        lengths = stops - starts
        codes = text.hashes(starts, stops, 1)
        factors = np.minimum(lengths, _LENGTH_FULL) / _LENGTH_FULL
        factors = np.where(np.isin(codes, self._stop), factors * _STOP_FACTOR, factors)
        yield text.features(starts, codes, _WORD_WEIGHT * factors)
        follows = text.piece[starts[:-1]] == text.piece[starts[1:]]
        pairs = _mixed(codes[:-1] * np.uint64(3) + codes[1:] * _SALT)
        yield text.features(
            starts[:-1][follows], pairs[follows], (_PAIR_WEIGHT * np.minimum(factors[:-1], factors[1:]))[follows]
        )
        places = np.flatnonzero(text.kinds == WORD)
        word = np.repeat(np.arange(starts.size), lengths)
        for size in _GRAMS:
            inside = (places + size <= stops[word]) & (lengths[word] > size)
            begin, owner = places[inside], word[inside]
            edge = 2 * (begin == starts[owner]) + (begin + size == stops[owner])
            grams = text.hashes(begin, begin + size, 8 * size + edge)
            yield text.features(begin, grams, _GRAM_WEIGHT * factors[owner] / np.sqrt(lengths[owner] - size + 1))

    def _word_codes(self, words: str) -> U64:
        text = _Text([words], self._scripts)
        return text.hashes(*text.words(), 1)


class _Text:
    """Pieces laid end to end, each followed by a separator, with the hash of any stretch in constant time."""

    def __init__(self, pieces: Sequence[str], scripts: Scripts) -> None:
        joined = "".join(f"{piece}\n" for piece in pieces)
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.piece: Ints = np.repeat(np.arange(len(pieces)), [len(piece) + 1 for piece in pieces])
        self.kinds = scripts.of(codes)
        powers, self._inverses = _powers(codes.size)
        terms = _mixed(codes.astype(np.uint64) + np.uint64(1)) * powers
        self._sums: U64 = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(terms, dtype=np.uint64)))

    def words(self) -> tuple[Ints, Ints]:
        """Where each run of word characters starts and stops."""
        inside = np.concatenate(([False], self.kinds == WORD, [False]))
        changes = np.flatnonzero(inside[1:] != inside[:-1])
        return changes[::2], changes[1::2]

    def hashes(self, starts: Ints, stops: Ints, salts: int | Ints) -> U64:
        """A hash of the characters in each [start, stop) and the salt, wherever they stand."""
        stretch = (self._sums[stops] - self._sums[starts]) * self._inverses[starts]
        salted: U64 = np.asarray(salts).astype(np.uint64) * _SALT
        return _mixed(stretch + salted)

    def features(self, places: Ints, codes: U64, weights: NDArray[np.float64]) -> _Features:
        return _Features(self.piece[places], codes, np.rint(weights * _ONE).astype(np.int64))


def _character_features(text: _Text) -> Iterator[_Features]:
    """Singles, pairs and triples of neighbours in scripts that are written without spaces."""
    unspaced = (text.kinds != NEITHER) & (text.kinds != WORD) & (text.kinds <= KATAKANA)
    factors = np.where(text.kinds == HIRAGANA, _HIRAGANA_FACTOR, 1.0)
    places = np.flatnonzero(unspaced)
    weights = factors[places]
    for size, weight in ((1, _SINGLE_WEIGHT), (2, _DOUBLE_WEIGHT), (3, _TRIPLE_WEIGHT)):
        if size > 1:  # a separator follows every piece: place + size − 1 is always inside
            goes_on = unspaced[places + size - 1]
            places = places[goes_on]
            weights = weights[goes_on] * factors[places + size - 1]
        yield text.features(places, text.hashes(places, places + size, 100 + size), weight * weights)


def _groups(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Normalised pieces with the index of their text, in groups of bounded size."""
    owners: list[int] = []
    pieces: list[str] = []
    size = 0
    for owner, text in enumerate(texts):
        for piece in _pieces(unicodedata.normalize("NFKC", text).lower()):
            if size + len(piece) > GROUP_CHARACTERS and pieces:
                yield owners, pieces
                owners, pieces, size = [], [], 0
            owners.append(owner)
            pieces.append(piece)
            size += len(piece) + 1
    if pieces:
        yield owners, pieces


def _pieces(text: str) -> Iterator[str]:
    """Cut at the last space of each stretch, or in the middle of a word that has none."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        space = text.rfind(" ", start + 1, start + PIECE_CHARACTERS)
        stop = space if space > 0 else start + PIECE_CHARACTERS
        yield text[start:stop]
        start = stop
    yield text[start:]


def _mixed(values: U64) -> U64:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _powers(size: int) -> tuple[U64, U64]:
    """The powers 0 … size − 1 of the base modulo 2^64, and their inverses (one more, for an empty tail)."""
    inverse = pow(_BASE, -1, 1 << 64)
    ahead = np.full(size + 1, _BASE, dtype=np.uint64)
    back = np.full(size + 1, inverse, dtype=np.uint64)
    ahead[0] = back[0] = 1
    return np.cumprod(ahead, dtype=np.uint64)[:size], np.cumprod(back, dtype=np.uint64)
