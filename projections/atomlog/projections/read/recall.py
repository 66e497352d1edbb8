"""Natural language by `cosine-max-v1`: r(a) = the largest of max(0, cos) over the inputs, then atom id.

Nothing else enters the score. What has no vector, or r = 0, is not in the list; the former is counted. The list is
made once, at the first page, at most `RANKED_MAX` long; later pages take it up where they left it. In a space whose
metric is not the cosine the score is the space's own similarity, and the scoring has another name.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from atomlog.kernel.errors import AtomlogError, InvalidError, UnavailableError
from atomlog.kernel.ids import invalid
from atomlog.kernel.jsontext import canonical, dumps, loads
from atomlog.kernel.model import Positions
from atomlog.kernel.vector_spaces import VectorSpace, parse_vector_space
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.read.receipts import score_bits
from atomlog.projections.read.refs import raw_id
from atomlog.projections.read.scope import Scope
from atomlog.projections.read.selectors import INPUTS, Recall
from atomlog.projections.read.sources import GROUP, Found, Notes, State, read_range
from atomlog.schemas.revision import ReadRange

if TYPE_CHECKING:  # numpy comes with it, which only a recall needs
    from atomlog.projections.encoders import Encoder
    from atomlog.projections.vectors import Vectors

RANKED_MAX: Final = 1_000  # rows of one recall, over all its pages
SMALL_STORE_ROWS: Final = 10_000  # up to here a search is exact, and as deep as the list may be
DEPTH_MIN: Final = 100
DEPTH_FACTOR: Final = 10  # … beyond: this many times the page
VECTOR_INPUT: Final = "vector"

COSINE_MAX: Final = "cosine-max-v1"
SIMILARITY_MAX: Final = "similarity-max-v1"
SCORINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    COSINE_MAX: {"similarity": "cosine", "below_zero": 0, "inputs": "max", "order": ["score desc", "atom"]},
    SIMILARITY_MAX: {"similarity": "of the space", "inputs": "max", "order": ["score desc", "atom"]},
}
_ROW: Final = struct.Struct(">16s16s4sB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """What is searched for, in one space: (name of the input, its vector). `cuts`: inputs that have none, and why."""

    space: VectorSpace
    inputs: tuple[tuple[str, tuple[float, ...]], ...]
    cuts: tuple[Mapping[str, Any], ...] = ()

    @property
    def scoring(self) -> str:
        return COSINE_MAX if self.space.metric == "cosine" else SIMILARITY_MAX

    def to_dict(self) -> dict[str, Any]:
        return {
            "space": self.space.id,
            "inputs": [[name, struct.pack(f"<{len(numbers)}f", *numbers).hex()] for name, numbers in self.inputs],
            "cuts": [dict(cut) for cut in self.cuts],
        }


def queries_from_dict(value: Mapping[str, Any]) -> Queries:
    space = parse_vector_space(value["space"], "space")
    inputs = [(name, struct.unpack(f"<{space.dim}f", bytes.fromhex(raw))) for name, raw in value["inputs"]]
    return Queries(space=space, inputs=tuple(inputs), cuts=tuple(value["cuts"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The whole list, best first: (atom, revision, score bits, index of the input that gave the score).

    `k`: how many rows the search asked for.
    """

    rows: tuple[tuple[bytes, bytes, bytes, int], ...]
    queries: Queries
    k: int
    approximate: bool
    unembedded: int
    cuts: tuple[Mapping[str, Any], ...]

    def to_bytes(self) -> bytes:
        head = dumps(
            {
                "queries": self.queries.to_dict(),
                "k": self.k,
                "approximate": self.approximate,
                "unembedded": self.unembedded,
                "cuts": [dict(cut) for cut in self.cuts],
            }
        )
        return len(head).to_bytes(4, "big") + head + b"".join(_ROW.pack(*row) for row in self.rows)


def ranked_from_bytes(raw: bytes) -> Ranked:
    start = 4 + int.from_bytes(raw[:4], "big")
    head = loads(raw[4:start])
    return Ranked(
        rows=tuple(_ROW.iter_unpack(raw[start:])),
        queries=queries_from_dict(head["queries"]),
        k=head["k"],
        approximate=head["approximate"],
        unembedded=head["unembedded"],
        cuts=tuple(head["cuts"]),
    )


def scoring_digest(scoring: str) -> bytes:
    """SHA-256 over the name and the rules of a scoring."""
    return hashlib.sha256(canonical({"scoring": scoring, **SCORINGS[scoring]}, "scoring")).digest()


async def embed(selector: Recall, encoders: "Mapping[str, Encoder]") -> Queries:
    """Every input as a vector of one space. An encoder that is down costs its inputs, not the read.

    Raises INVALID_INPUT: an unknown space, a text in a space whose vectors only come supplied.
    """
    space, encoder = _encoder_for(selector, encoders)
    inputs: list[tuple[str, tuple[float, ...]]] = []
    cuts: list[Mapping[str, Any]] = []
    for name in INPUTS:
        text: str | None = getattr(selector, name)
        if text is None:
            continue
        try:
            vector = tuple(float(number) for number in (await encoder.encode_query(text)).tolist())
        except (OSError, UnavailableError) as error:
            cuts.append({"part": name, "why": f"the encoder of {space.id} is not available: {_message(error)}"})
            continue
        if any(vector):
            inputs.append((name, vector))
        else:
            cuts.append({"part": name, "why": f"the encoder of {space.id} finds nothing in it to compare"})
    inputs += [(VECTOR_INPUT, _checked(space, numbers)) for _, numbers in selector.vectors]
    return Queries(space=space, inputs=tuple(inputs), cuts=tuple(cuts))


def depth(vectors: "Vectors", limit: int) -> int:
    """How many rows a search asks for."""
    rows = sum(vectors.rows(partition) for partition in range(vectors.partitions))
    return RANKED_MAX if rows <= SMALL_STORE_ROWS else min(max(DEPTH_FACTOR * limit, DEPTH_MIN), RANKED_MAX)


def rank(vectors: "Vectors", queries: Queries, k: int, at: Positions, allowed: Mapping[int, Bitmap] | None) -> Ranked:
    """The k best of the allowed atoms.

    The k best of each input hold the k best of the maximum: an atom that is better than the k-th there is among the
    k best of the input that it owes its score to.
    """
    best: dict[bytes, tuple[float, bytes, int]] = {}
    approximate = False
    unembedded = 0
    full = False
    for number, (_, vector) in enumerate(queries.inputs):
        found = vectors.search(queries.space.id, vector, k, at, allowed)
        approximate |= found.approximate
        unembedded = max(unembedded, found.unembedded)
        # Hits come best first: when the last one scores nothing, all that score have been found.
        full |= len(found.hits) >= k and (queries.scoring != COSINE_MAX or found.hits[-1].score > 0)
        for hit in found.hits:
            score = float(hit.score)
            if queries.scoring == COSINE_MAX and score <= 0:
                continue
            if hit.atom not in best or score > best[hit.atom][0]:
                best[hit.atom] = (score, hit.revision, number)
    ordered = sorted(best.items(), key=lambda item: (-item[1][0], item[0]))[:k]
    cuts = [*queries.cuts, *([{"part": "candidates", "limit": k}] if full else [])]
    return Ranked(
        rows=tuple((atom, revision, score_bits(score), number) for atom, (score, revision, number) in ordered),
        queries=queries,
        k=k,
        approximate=approximate,
        unembedded=unembedded,
        cuts=tuple(cuts),
    )


@dataclass(slots=True)
class RecallSource:
    """A ranked list, from an index on. A candidate that is no head at the read's positions is dropped."""

    ranked: Ranked
    scope: Scope
    state: State
    finished: bool = False

    @property
    def notes(self) -> Notes:
        ranked = self.ranked
        scoring = ranked.queries.scoring
        return Notes(
            approximate=ranked.approximate,
            unembedded=ranked.unembedded,
            cuts=ranked.cuts,
            encoders=(ranked.queries.space.id,),
            scoring=scoring,
            scoring_digest=scoring_digest(scoring),
            searched=True,
        )

    def __iter__(self) -> Iterator[Found]:
        queries = self.ranked.queries
        for index in range(int(self.state.get("index", 0)), len(self.ranked.rows)):
            atom, revision, score, number = self.ranked.rows[index]
            reason = {"scoring": queries.scoring, "input": queries.inputs[number][0]}
            yield Found(
                atom=atom,
                revision=revision,
                reason=reason,
                score=score,
                state={**self.state, "index": index + 1},
                keep_retired=False,
                heads_only=True,
            )
        self.finished = True

    def resume(self, found: Found) -> State:
        return found.state

    def ranges(self, observed: Positions, *, complete: bool) -> tuple[ReadRange, ...]:
        read = [(GROUP, group) for group in (*self.scope.group_and, *self.scope.group_not)] + [*self.scope.slots]
        return tuple(read_range(role, raw_id(target), observed, complete=True) for role, target in read)

    def asked(self) -> Sequence[bytes]:
        targets = [target for _, target in self.scope.slots]
        return tuple(map(raw_id, (*self.scope.group_and, *self.scope.group_not, *targets)))


def _encoder_for(selector: Recall, encoders: "Mapping[str, Encoder]") -> "tuple[VectorSpace, Encoder]":
    """The space of the vectors given, else the first one that a text can be encoded in."""
    texts = [name for name in INPUTS if getattr(selector, name) is not None]
    if selector.vectors:
        encoder = _known(selector.vectors[0][0], encoders)
        if texts and not encoder.media_types:
            message = f"no text can be compared in {encoder.space.id}; ask for it apart, without vectors"
            raise invalid(f"selector.{texts[0]}", message)
        return encoder.space, encoder
    for encoder in encoders.values():
        if encoder.media_types:
            return encoder.space, encoder
    raise invalid("selector.text", "this store encodes no text; give a vector of one of its spaces")


def _known(space: str, encoders: "Mapping[str, Encoder]") -> "Encoder":
    encoder = encoders.get(space)
    if encoder is None:
        raise invalid("selector.vectors", f"{space} is no vector space of this store; it has {', '.join(encoders)}")
    return encoder


def _checked(space: VectorSpace, numbers: tuple[float, ...]) -> tuple[float, ...]:
    path = f"selector.vectors.{space.id}"
    try:
        from atomlog.projections.vectors.scoring import query_row

        row = query_row(space, numbers)
    except InvalidError as error:
        raise invalid(path, str(error.details[0]["message"])) from None
    if row is None:
        raise invalid(path, "all zeros have no direction to compare")
    return numbers


def _message(error: Exception) -> str:
    return error.message if isinstance(error, AtomlogError) else str(error) or type(error).__name__
