"""init and write."""

from typing import Any, BinaryIO

import click

from atomlog.consumers.cli.lines import lines
from atomlog.consumers.cli.output import counted, emit, emit_json
from atomlog.consumers.cli.session import Session, example, run, say, with_session
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import SHARD_ROWS, VECTOR_SPACES
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import AtomlogError, InvalidError, fail
from atomlog.kernel.ids import format_id, invalid
from atomlog.kernel.jsontext import parse_json
from atomlog.kernel.model import error_result

BATCH_ERRORS = ("invalid", "conflict", "capability", "denied", "gone")  # of one batch: --keep-going goes on


@click.command(epilog=example("atomlog init --store ./notes --partitions 4"))
@click.option("--partitions", default=1, show_default=True, metavar="N", help="Parts of the log; fixed for ever.")
@click.option("--shard-rows", default=SHARD_ROWS, show_default=True, metavar="N", help="Rows of a vector shard.")
@click.option(
    "--vector-space",
    "vector_spaces",
    multiple=True,
    metavar="ID",
    help=f"A vector space, ENCODER/VERSION/DIM/METRIC.  [default: {VECTOR_SPACES[0]}]",
)
@with_session
def init(session: Session, partitions: int, shard_rows: int, vector_spaces: tuple[str, ...]) -> None:
    """Make a store in an absent or empty directory."""

    async def work() -> dict[str, Any]:
        config = await AsyncStore.init(
            session.directory,
            partitions=partitions,
            master_key_file=session.master_key_file,
            shard_rows=shard_rows,
            vector_spaces=vector_spaces or VECTOR_SPACES,
        )
        return {**config.to_dict(), "log_id": format_id(config.log_id)}

    made = run(work())
    if session.as_json:
        emit_json(made)
    else:
        emit(f"made a store in {session.directory}: log {made['log_id']}, {counted(partitions, 'partition')}")
    key = session.master_key_file or f"{session.directory}/master.key"
    say(f"{key} is the master key: without it no content can be read. Keep a copy elsewhere.")


@click.command(epilog=example("atomlog write batches.jsonl", "echo '{\"space\": …}' | atomlog write"))
@click.argument("file", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option("--keep-going", is_flag=True, help="Go on after a refused batch; ends with the first error's exit code.")
@with_session
def write(session: Session, file: BinaryIO, *, keep_going: bool) -> None:
    """Write batches: one JSON object a line in, one result a line out.

    Reads standard input without FILE. Results are always JSON.
    """
    first = run(_write_all(session, file, keep_going=keep_going))
    if first is not None:
        say(f"error: {first.code}: {first.message}")
        click.get_current_context().exit(first.exit_code)


async def _write_all(session: Session, file: BinaryIO, *, keep_going: bool) -> AtomlogError | None:
    """The first error, if there was one."""
    first: AtomlogError | None = None
    async with session.store(create=True) as store:
        async for number, line in lines(file, line_bytes_max=REQUEST_BYTES_MAX):
            try:
                emit_json((await store.write(_batch(number, line))).to_dict())
            except AtomlogError as error:
                emit_json({"line": number, **error_result(error.to_dict())})
                first = first or error
                if not keep_going or error.kind not in BATCH_ERRORS:
                    break
    return first


def _batch(number: int, line: bytes | None) -> Any:
    if line is None:
        raise fail("BOUND_EXCEEDED", f"line {number}: more than {REQUEST_BYTES_MAX} bytes")
    try:
        return parse_json(line, f"line {number}")
    except InvalidError as error:
        if ": not JSON: " not in error.message:
            raise
        raise invalid(f"line {number}", f"{error.details[0]['message']}; each line is one whole batch") from None


COMMANDS = (init, write)
