"""What an open store reads and writes with. Of a shared store is imported only what an open one needs."""

from typing import TYPE_CHECKING

from atomlog.consumers.indexes import OpenIndexes
from atomlog.consumers.parts import Parts
from atomlog.consumers.writing import WriteSide, Writing
from atomlog.projections.read.pins import Pins
from atomlog.projections.read.positions import SNAPSHOT, VERSION_PINNED
from atomlog.projections.read.reader import Reader

if TYPE_CHECKING:
    from atomlog.consumers.cluster.routed import RoutedReader


def reader_of(parts: Parts, views: OpenIndexes) -> Reader:
    """Reads what is here. Indexes of a shared store stand at different places: its reads pin versions by default."""
    is_embedded = parts.embedded is not None
    return Reader(
        indexes=views,
        content=parts.content,
        journal=parts.journal,
        encoders=parts.encoders,
        log=parts.log,
        clock=parts.machine.clock,
        settings=parts.settings,
        catch_up=views.catch_up,
        pins=Pins(parts.machine.clock, parts.settings.cursor_ttl_ms),
        consistency=SNAPSHOT if is_embedded else VERSION_PINNED,
        recalls_snapshots=is_embedded,
    )


def routed_reader(parts: Parts, reader: Reader, views: OpenIndexes) -> "RoutedReader | None":
    """Reads through other nodes what is not here; None for an embedded store, which has everything."""
    if parts.shared is None:
        return None
    from atomlog.consumers.cluster.routed import RoutedReader

    return RoutedReader.of(parts.shared, reader, views)


def write_side(parts: Parts) -> Writing:
    """Of an embedded store the one that holds it or forwards to who does; of a node the one that asks owners."""
    if parts.shared is None:
        return WriteSide(parts)
    from atomlog.consumers.cluster.writing import ClusterWriteSide

    return ClusterWriteSide(parts, parts.shared.owners(), parts.shared.connections())
