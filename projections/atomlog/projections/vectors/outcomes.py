"""From the revisions of a batch to what becomes of each row in one space: a vector, nothing, or trouble.

One bad row never fails the others: a text whose batch was refused is encoded again alone. An encoder that is down is
no row's fault; its texts stay undecided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from atomlog.kernel.content import ContentOpener, Opened, Sealed
from atomlog.kernel.errors import AtomlogError, UnavailableError
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.encoders import TEXT, Encoder
from atomlog.projections.vectors.blocks import F32
from atomlog.projections.vectors.cache import EmbeddingCache
from atomlog.projections.vectors.layout import Ending
from atomlog.projections.vectors.scoring import Vector, stored_row, stored_rows


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to embed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`ending` RETRY asks for another try."""

    ending: Ending
    error: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """The encoder is down."""

    error: str


AT_ONCE_CHARACTERS_MAX: Final = 4 * 1024 * 1024  # of the texts that are held to be encoded, the last one beyond it
Outcome = Vector | Nothing | Failure | Undecided
NOTHING = Nothing()


async def outcomes_of(
    revisions: Sequence[bytes | None],
    space: VectorSpace,
    encoder: Encoder,
    content: ContentOpener,
    cache: EmbeddingCache | None,
) -> list[Outcome]:
    """One outcome a revision, in order; None for a revision that the store lost."""
    outcomes: list[Outcome] = []
    waiting: list[Outcome | str] = []
    characters = 0
    for revision in revisions:
        # Each is let go of before the next is opened: a text from the blob store has up to 64 MiB.
        one = _without_encoder(await _opened(content, revision), space, encoder)
        waiting.append(one)
        characters += len(one) if isinstance(one, str) else 0
        if characters > AT_ONCE_CHARACTERS_MAX:
            outcomes += await _settled(waiting, space, encoder, cache)
            waiting, characters = [], 0
    return outcomes + await _settled(waiting, space, encoder, cache)


async def _settled(
    waiting: Sequence[Outcome | str], space: VectorSpace, encoder: Encoder, cache: EmbeddingCache | None
) -> list[Outcome]:
    """The same with an outcome in the place of each text."""
    texts = list(dict.fromkeys(one for one in waiting if isinstance(one, str)))
    encoded = await _encoded(texts, space, encoder, cache)
    return [encoded[one] if isinstance(one, str) else one for one in waiting]


async def _opened(content: ContentOpener, revision: bytes | None) -> Opened | Failure:
    if revision is None:
        return Failure(Ending.FAILED, "the waiting revision is missing from the store; rebuild vectors")
    try:
        opened = await content.open(revision)
    except AtomlogError as error:
        endings = {"PURGED": Ending.PURGED, "KEY_UNAVAILABLE": Ending.SEALED}
        return Failure(endings.get(error.code, Ending.RETRY), str(error))
    except Exception as error:
        return Failure(Ending.RETRY, _named(error))
    return Failure(Ending.SEALED, opened.reason) if isinstance(opened, Sealed) else opened


def _without_encoder(opened: Opened | Failure, space: VectorSpace, encoder: Encoder) -> Outcome | str:
    """What can be said at once, or the text to encode. A supplied vector goes before encoding."""
    if isinstance(opened, Failure):
        return opened
    for supplied in opened.vectors:
        if supplied.space == space.id:
            return _supplied(space, supplied.data)
    text = opened.search_text if TEXT in encoder.media_types else None
    return NOTHING if text is None else text


def _supplied(space: VectorSpace, data: bytes) -> Outcome:
    """The kernel refuses bad ones before they are acknowledged; whatever comes by another way ends here."""
    try:
        row = stored_row(space, np.frombuffer(data, dtype=F32))
    except ValueError as error:
        return Failure(Ending.FAILED, str(error))
    return Failure(Ending.FAILED, "the vector is all zeros, which have no direction") if row is None else row


async def _encoded(
    texts: Sequence[str], space: VectorSpace, encoder: Encoder, cache: EmbeddingCache | None
) -> Mapping[str, Outcome]:
    known = cache.find(space, texts) if cache and texts else {}
    new = [text for text in texts if text not in known]
    raw, errors = await _asked(new, space, encoder) if new else ({}, {})
    kept = _kept(space, known | raw)
    if cache and (fresh := {text: row for text, row in raw.items() if not isinstance(kept[text], Failure)}):
        cache.add(space, fresh)
    return {**errors, **kept}


def _kept(space: VectorSpace, found: Mapping[str, Vector]) -> Mapping[str, Outcome]:
    """What is stored of the rows that texts have; one bad row never fails the others."""
    if not found:
        return {}
    matrix = np.stack(list(found.values()))
    try:
        rows = stored_rows(space, matrix)
    except ValueError:
        return {text: _kept_alone(space, row) for text, row in found.items()}
    present: list[bool] = np.any(matrix, axis=1).tolist()
    decided = zip(found, rows, present, strict=True)
    return {text: row if some and row is not None else NOTHING for text, row, some in decided}


def _kept_alone(space: VectorSpace, row: Vector) -> Outcome:
    try:
        kept = stored_row(space, row)
    except ValueError as error:
        return Failure(Ending.RETRY, f"from the encoder: {error}")
    return NOTHING if kept is None or not kept.any() else kept


async def _asked(
    texts: Sequence[str], space: VectorSpace, encoder: Encoder
) -> tuple[dict[str, Vector], dict[str, Outcome]]:
    """Rows by text as the encoder gave them, and what became of the texts that it gave none for."""
    try:
        found = np.asarray(await encoder.encode_passages(texts))
        if found.shape != (len(texts), space.dim):
            wanted = (len(texts), space.dim)
            raise ValueError(f"the encoder of {space.id} gave an array of shape {found.shape} instead of {wanted}")
        with np.errstate(over="ignore"):
            rows = found.astype(np.float32)
        return dict(zip(texts, rows, strict=True)), {}
    except (OSError, UnavailableError) as error:
        return {}, dict.fromkeys(texts, Undecided(_named(error)))
    except Exception as error:
        if len(texts) == 1:
            return {}, {texts[0]: Failure(Ending.RETRY, _named(error))}
    return await _asked_singly(texts, space, encoder)


async def _asked_singly(
    texts: Sequence[str], space: VectorSpace, encoder: Encoder
) -> tuple[dict[str, Vector], dict[str, Outcome]]:
    rows: dict[str, Vector] = {}
    others: dict[str, Outcome] = {}
    for index, text in enumerate(texts):
        found, errors = await _asked([text], space, encoder)
        rows |= found
        others |= errors
        down = errors.get(text)
        if isinstance(down, Undecided):
            others |= dict.fromkeys(texts[index:], down)
            break
    return rows, others


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, AtomlogError) else f"{type(error).__name__}: {error}"
