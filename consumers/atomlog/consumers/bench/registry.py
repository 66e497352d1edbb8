"""Every rung of the ladder, in the order in which they are run and shown."""

from collections.abc import Mapping
from typing import Final

from atomlog.consumers.bench.growth import GROWTH_RUNGS
from atomlog.consumers.bench.ladder import Rung
from atomlog.consumers.bench.opening import OPENING_RUNGS
from atomlog.consumers.bench.reads import READ_RUNGS
from atomlog.consumers.bench.replay import REPLAY_RUNGS
from atomlog.consumers.bench.vectors import VECTOR_RUNGS
from atomlog.consumers.bench.writes import WRITE_RUNGS

_ALL: tuple[Rung, ...] = (*WRITE_RUNGS, *REPLAY_RUNGS, *VECTOR_RUNGS, *READ_RUNGS, *GROWTH_RUNGS, *OPENING_RUNGS)
RUNGS: Final[Mapping[str, Rung]] = {rung.id: rung for rung in _ALL}
