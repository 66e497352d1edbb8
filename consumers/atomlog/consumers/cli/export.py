"""export."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from atomlog.consumers.cli.arguments import AT
from atomlog.consumers.cli.output import emit, emit_json, emit_table, positions
from atomlog.consumers.cli.progress import progress_bars
from atomlog.consumers.cli.session import Session, example, run, say, with_session

if TYPE_CHECKING:
    from atomlog.consumers.export.job import ExportReport

INDEXES = ("ids", "relations")


@click.command(
    epilog=example(
        "atomlog export --to ./tables",
        "atomlog export --to ./then --as-of 2026-03-01T00:00:00Z --tables revisions,relations",
    )
)
@click.option(
    "--to", "target", required=True, metavar="DIR", help="An absent or empty directory, or an unfinished one."
)
@click.option("--at", type=AT, help="As of a position: 17, or 0:17,1:5 for several partitions.  [default: the end]")
@click.option("--as-of", metavar="TIME", help="As of a time, RFC 3339 with offset.")
@click.option("--tables", metavar="NAME,…", help="revisions, inputs, relations, memberships, receipts.  [default: all]")
@with_session
def export(
    session: Session, target: str, at: int | Mapping[int, int] | None, as_of: str | None, tables: str | None
) -> None:
    """Write the store's tables as Parquet files, for DuckDB, Polars, pandas.

    All are as of one position. Killed, the same command goes on. Without the master key contents stay sealed.
    """

    async def work() -> "ExportReport":
        with progress_bars("exporting") as progress:
            async with session.store(projections=INDEXES) as store:
                return await store.export(
                    target,
                    at=at,
                    as_of=as_of,
                    tables=None if tables is None else [name.strip() for name in tables.split(",")],
                    progress=progress,
                )

    found = run(work())
    if session.as_json:
        emit_json(found.to_dict())
    else:
        emit(f"{found.directory}: as of {positions(found.manifest.positions)}")
        emit_table([(f"  {name}", f"{count} rows") for name, count in found.rows.items()])
    if found.manifest.sealed:
        say("there is no master key: contents are sealed, the columns that hold them are null")


COMMANDS = (export,)
