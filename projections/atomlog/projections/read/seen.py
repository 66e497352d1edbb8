"""What receipts say of where a read stood. Reads at an unmoved place share it, and its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel.jsontext import dumps, fragment
from atomlog.projections.read.page import Diagnostics
from atomlog.projections.read.receipts import At, IndexState, shown_indexes, shown_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Positions with their chains, and the indexes; `shown_*` are the same as written JSON.

    `diagnostics` are those of a read that has nothing to say but the lag.
    """

    positions: Mapping[int, At]
    indexes: Mapping[str, IndexState]
    shown_positions: Any
    shown_indexes: Any
    diagnostics: Diagnostics

    @property
    def chains(self) -> dict[int, bytes]:
        return {partition: at.chain for partition, at in self.positions.items()}

    @property
    def generations(self) -> dict[str, str]:
        """Name → which build."""
        return {name: state.generation for name, state in self.indexes.items()}


UNSEEN: Final = Seen(
    positions={}, indexes={}, shown_positions=None, shown_indexes=None, diagnostics=Diagnostics()
)  # nothing is written already


def seen(positions: Mapping[int, At], indexes: Mapping[str, IndexState]) -> Seen:
    return Seen(
        positions=positions,
        indexes=indexes,
        shown_positions=fragment(dumps(shown_positions(positions))),
        shown_indexes=fragment(dumps(shown_indexes(indexes))),
        diagnostics=Diagnostics(lag={name: state.lag for name, state in indexes.items()}),
    )
