"""A log by hand, the vectors projection over it, and brute force beside them."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.ports import Kv, Workers
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from atomlog.kernel.vector_spaces import VectorSpace, parse_vector_space
from atomlog.projections.encoders import TEXT, Encoder, Matrix, SuppliedEncoder, Vector
from atomlog.projections.vectors import Vectors
from atomlog.schemas.content import SuppliedVector
from tests.support.batches import LogBuilder
from tests.support.sealed import InlineWorkers, ring_of

STEPS_MAX = 10_000


def space_of(metric: str = "cosine", dim: int = 4, name: str = "supplied.test") -> VectorSpace:
    return parse_vector_space(f"{name}/1/{dim}/{metric}", "space")


def supplied(space: VectorSpace, vector: ArrayLike) -> tuple[SuppliedVector, ...]:
    return (SuppliedVector(space=space.id, data=np.asarray(vector, dtype="<f4").tobytes()),)


def plain_opener() -> ContentOpener:
    return ContentOpener(ring_of(MemoryKeyStore()), MemoryBlobStore())


class ScriptedEncoder:
    """Encodes each text by a function; `error` is raised instead while it is set. Counts what it is asked."""

    media_types = frozenset({TEXT})

    def __init__(self, space: VectorSpace, of: Callable[[str], ArrayLike] | None = None) -> None:
        self.space = space
        self.error: Exception | None = None
        self.poison: Mapping[str, Exception] = {}
        self.asked: list[list[str]] = []
        self._of = of or (lambda text: vector_of(text, space.dim))

    async def encode_passages(self, texts: Sequence[str]) -> Matrix:
        self.asked.append(list(texts))
        if self.error is not None:
            raise self.error
        for text in texts:
            if text in self.poison:
                raise self.poison[text]
        return np.array([self._of(text) for text in texts], dtype=np.float32)

    async def encode_query(self, text: str) -> Vector:
        return np.asarray(self._of(text), dtype=np.float32)


def vector_of(text: str, dim: int) -> NDArray[np.float32]:
    """Some vector of a text, the same in every run."""
    seed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(list(seed)).normal(size=dim).astype(np.float32)


@dataclass(slots=True, kw_only=True)
class World:
    """`vectors` follows `log` when told to. Reopen it over the same store with `reopened`."""

    directory: Path
    spaces: Sequence[VectorSpace]
    encoders: Mapping[str, Encoder] = field(default_factory=dict)
    kv: Kv = field(default_factory=MemoryKv)
    cache: Kv | None = None
    log: LogBuilder = field(default_factory=LogBuilder)
    settings: Settings = field(default_factory=lambda: Settings(embed_batch=256))
    shard_rows: int = 512
    exact_rows_max: int = 0
    workers: Workers = field(default_factory=InlineWorkers)
    content: ContentOpener = field(default_factory=plain_opener)
    vectors: Vectors = field(init=False)

    def __post_init__(self) -> None:
        self.reopen()

    @property
    def space(self) -> VectorSpace:
        return self.spaces[0]

    @property
    def at(self) -> dict[int, int]:
        """Everything that was applied."""
        return {0: self.vectors.checkpoint(0).position - 1}

    def reopen(self) -> None:
        self.vectors = Vectors(
            self.kv,
            1,
            spaces=self.spaces,
            shard_rows=self.shard_rows,
            directory=str(self.directory / "shards"),
            files=SystemFiles(),
            workers=self.workers,
            settings=self.settings,
            content=self.content,
            encoders={space.id: SuppliedEncoder(space) for space in self.spaces} | dict(self.encoders),
            cache=self.cache,
            exact_rows_max=self.exact_rows_max,
        )

    def apply(self) -> None:
        """What the log has and the projection has not."""
        position = self.vectors.checkpoint(0).position
        records = [record for record in self.log.records if record.position >= position]
        if position != self.log.end:
            self.vectors.apply(0, records, self.log.checkpoint)

    def work(self) -> int:
        """Background work until there is none; how many pieces."""
        return asyncio.run(drained(self.vectors))

    def follow(self) -> None:
        self.apply()
        self.work()

    def shard_files(self, ending: str = "") -> list[Path]:
        return sorted(path for path in (self.directory / "shards").iterdir() if path.name.endswith(ending))


async def drained(vectors: Vectors) -> int:
    for steps in range(STEPS_MAX):
        if not await vectors.step():
            return steps
    raise AssertionError("the background work does not end")


def hits(world: World, query: ArrayLike, k: int = 10, **rest: object) -> list[tuple[bytes, float]]:
    """(atom, score) of a search as of everything applied, or of `at`."""
    at = rest.pop("at", world.at)
    found = world.vectors.search(world.space.id, query, k, at, **rest)  # type: ignore[arg-type]
    return [(hit.atom, hit.score) for hit in found.hits]
