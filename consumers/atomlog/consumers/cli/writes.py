"""write."""

from typing import Any, BinaryIO

import click

from atomlog.consumers.cli.lines import lines
from atomlog.consumers.cli.output import emit_json
from atomlog.consumers.cli.session import Session, example, run, say, with_session
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import AtomlogError, InvalidError, fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.jsontext import parse_json
from atomlog.kernel.model import error_result

BATCH_ERRORS = ("invalid", "conflict", "capability", "denied", "gone")  # of one batch: --keep-going goes on


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


COMMANDS = (write,)
