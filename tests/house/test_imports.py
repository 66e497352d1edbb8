"""Who may import whom. The layers are import-linter's (pyproject.toml); what it cannot say stands here.

import-linter refuses a contract that names a module which does not exist yet; these walk the source instead.
"""

import sys

from tests.house.tree import imports, is_within

# Outside library → the only modules (with what is under them) that may import it.
HOMES: dict[str, tuple[str, ...]] = {
    "aiokafka": ("atomlog.kernel.kafka.wire", "atomlog.consumers.bench.kafka_peers"),
    "click": ("atomlog.consumers.cli",),
    "crc32c": ("atomlog.kernel.log.frames", "atomlog.kernel.rocks_files"),
    "cryptography": ("atomlog.kernel.sealing", "atomlog.consumers.cluster.credentials"),
    "eventsourcing": ("atomlog.consumers.bench.peers",),
    "fastavro": ("atomlog.schemas.codec",),
    "hnswlib": ("atomlog.projections.vectors.hnsw", "atomlog.consumers.bench.vectors"),
    "numpy": ("atomlog.projections.vectors", "atomlog.projections.encoders", "atomlog.consumers.bench.vectors"),
    "orjson": ("atomlog.kernel.jsontext",),
    "prometheus_client": ("atomlog.consumers.metrics",),
    "pyarrow": ("atomlog.consumers.export.parquet",),
    "pyroaring": ("atomlog.projections.bitmaps",),
    "rocksdict": ("atomlog.kernel.rocks", "atomlog.consumers.bench.reads"),
    "sqlite3": ("atomlog.kernel.sqlite",),
}
# Each derived state stands alone: they meet only in the read. What they share (bitmaps, …) is not listed.
PROJECTIONS = ("heads", "ids", "relations", "postings", "vectors", "lexical", "dependencies", "associations")
PACKAGES = tuple(f"atomlog.projections.{name}" for name in PROJECTIONS)


def test_each_outside_library_is_imported_only_at_home() -> None:
    strays = [
        f"{found.where}: {found.importer} imports {found.imported}; only {', '.join(homes)} may"
        for found in imports()
        if (homes := HOMES.get(found.imported.partition(".")[0]))
        and not any(is_within(found.importer, home) for home in homes)
    ]
    assert not strays, "\n".join(strays)


def test_each_outside_library_has_a_home() -> None:
    known = sys.stdlib_module_names | HOMES.keys() | {"atomlog"}
    homeless = [
        f"{found.where}: {found.imported} has no row in the table HOMES"
        for found in imports()
        if found.imported.partition(".")[0] not in known
    ]
    assert not homeless, "\n".join(homeless)


def test_projections_never_import_one_another() -> None:
    crossings = [
        f"{found.where}: {found.importer} imports {found.imported}"
        for found in imports()
        for mine in PACKAGES
        if is_within(found.importer, mine)
        for other in PACKAGES
        if other != mine and is_within(found.imported, other)
    ]
    assert not crossings, "\n".join(crossings)


def test_sources_never_import_tests() -> None:
    assert not [found.where for found in imports() if is_within(found.imported, "tests")]
