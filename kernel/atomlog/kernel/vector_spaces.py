"""Vector spaces: `encoder/version/dim/metric`, e.g. `hashing/1/512/cosine` or `supplied.sift/1/128/l2`.

Two vectors may be compared only inside one space; a new encoder or dimension is a new space.
"""

import re
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.bounds import NAME_PATTERN, VECTOR_DIM_MAX
from atomlog.kernel.ids import invalid, shown

METRICS: Final = ("cosine", "l2", "ip")
_SPACE: Final = re.compile(
    rf"(?P<encoder>{NAME_PATTERN})/(?P<version>[A-Za-z0-9][A-Za-z0-9._-]{{0,31}})"
    rf"/(?P<dim>[1-9][0-9]{{0,5}})/(?P<metric>{'|'.join(METRICS)})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpace:
    """`id` names all four: who encodes, in which version, into how many numbers, compared by which metric."""

    id: str
    encoder: str
    version: str
    dim: int
    metric: str


def parse_vector_space(text: object, path: str) -> VectorSpace:
    """The space of an id; INVALID_INPUT naming `path` otherwise."""
    match = _SPACE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        message = f"{shown(text)} is no vector space; write encoder/version/dim/metric like hashing/1/512/cosine"
        raise invalid(path, f"{message}, metric one of {', '.join(METRICS)}")
    dim = int(match["dim"])
    if dim > VECTOR_DIM_MAX:
        raise invalid(path, f"a vector space has at most {VECTOR_DIM_MAX} dimensions, this one {dim}")
    return VectorSpace(id=match[0], encoder=match["encoder"], version=match["version"], dim=dim, metric=match["metric"])
