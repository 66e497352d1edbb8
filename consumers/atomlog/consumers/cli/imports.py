"""import jsonl, import git."""

import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from atomlog.consumers.cli.output import emit, emit_json, show_error
from atomlog.consumers.cli.progress import progress_bar
from atomlog.consumers.cli.session import Session, example, run, say, with_session
from atomlog.consumers.imports.git import GitImport
from atomlog.consumers.imports.git_lines import FILE_BYTES_MAX
from atomlog.consumers.imports.git_process import GitRepository
from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.raw import spool
from atomlog.consumers.imports.store_side import StoreSide
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import parse_name
from atomlog.kernel.ports import File
from atomlog.kernel.system import SystemClock, SystemFiles


@click.group(name="import")
def import_group() -> None:
    """Take real sources in. Importing twice adds nothing."""


def _with_target(function: Callable[..., Any]) -> Callable[..., Any]:
    space = click.option(
        "--space", envvar="ATOMLOG_SPACE", required=True, show_envvar=True, help="The space to import into."
    )
    policy = click.option(
        "--key-policy", metavar="NAME", help="The policy of what is imported, and of its keys.  [default: as the space]"
    )
    return space(policy(function))


@import_group.command(
    epilog=example("atomlog import jsonl notes.jsonl --space notes", "zcat notes.jsonl.gz | atomlog import jsonl - …")
)
@click.argument("path", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--split", is_flag=True, help="Write a batch over the bounds in parts.")
@click.option("--keep-going", is_flag=True, help="Go on after a refused batch; ends with exit code 2.")
@_with_target
@with_session
def jsonl(session: Session, path: str, *, split: bool, keep_going: bool, **target: str | None) -> None:
    """Changes from a file, one a line; see docs/cli.md.

    PATH may be - for standard input.
    """
    keys = _keys(**target)
    summary = Summary(space=keys.space)

    with _open(path) as file, progress_bar("importing") as bar:

        async def work(store: AsyncStore) -> None:
            await JsonlImport(
                store=StoreSide(store, keys.space),
                keys=keys,
                file=file,
                clock=SystemClock(),
                split=split,
                keep_going=keep_going,
                say=say,
                progress=lambda phase, done, total: bar(done if phase == "looking" else total + done, 2 * total),
            ).run(summary)

        error = _carry_out(session, summary, work)
    _tell(session, summary, error)


@import_group.command(epilog=example("atomlog import git ~/src/project --space project"))
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--ref", default="HEAD", show_default=True, help="The commit to end at; along first parents.")
@click.option(
    "--file-bytes-max",
    default=FILE_BYTES_MAX,
    show_default=True,
    metavar="N",
    help="Longer versions of a file are passed over.",
)
@_with_target
@with_session
def git(session: Session, path: str, ref: str, file_bytes_max: int, **target: str | None) -> None:
    """The history of a repository's text files, one commit one batch."""
    keys = _keys(**target)
    summary = Summary(space=keys.space)

    with progress_bar("importing") as bar:

        async def work(store: AsyncStore) -> None:
            await GitImport(
                store=StoreSide(store, keys.space),
                keys=keys,
                repository=GitRepository(path=path, environment=os.environ),
                clock=SystemClock(),
                ref=ref,
                file_bytes_max=file_bytes_max,
                say=say,
                commit_done=bar,
            ).run(summary)

        error = _carry_out(session, summary, work)
    _tell(session, summary, error)


COMMANDS = (import_group,)


def _keys(space: str | None, key_policy: str | None) -> Keys:
    name = parse_name(space, "--space")
    return Keys(space=name, policy=name if key_policy is None else parse_name(key_policy, "--key-policy"))


def _carry_out(
    session: Session, summary: Summary, work: Callable[[AsyncStore], Awaitable[None]]
) -> AtomlogError | None:
    """Run an import; the error that ended it, if one did."""

    async def imported() -> None:
        async with session.store(create=True) as store:
            await work(store)

    try:
        run(imported())
    except AtomlogError as error:
        return error
    except BaseException:
        say(f"stopped; {summary.written} batches were written. The same command again goes on from there.")
        raise
    return None


def _tell(session: Session, summary: Summary, error: AtomlogError | None) -> None:
    first = error or next(iter(summary.errors), None)
    if session.as_json:
        emit_json({"ok": first is None, **summary.to_dict(), "error": None if first is None else first.to_dict()})
    elif first is None or summary.batches:
        emit(_in_words(summary))
    if first is None:
        return
    if error is not None:
        show_error(error, as_json=False)
    click.get_current_context().exit(first.exit_code)


def _in_words(summary: Summary) -> str:
    """The counts that are not zero."""
    counts = [(name, count) for name, count in summary.to_dict().items() if isinstance(count, int) and count]
    return (
        ", ".join(f"{count} {_ONE.get(name, name) if count == 1 else name}" for name, count in counts) or "nothing new"
    )


_ONE = {"batches": "batch", "lines": "line", "changes": "change", "retries": "retry", "commits": "commit"}


@contextmanager
def _open(path: str) -> Iterator[File]:
    """The file, or a copy of what can be read only once."""
    files = SystemFiles()
    if path != "-" and os.path.isfile(path):
        file = files.open(path, write=False)
        try:
            yield file
        finally:
            file.close()
        return
    with tempfile.TemporaryDirectory(prefix="atomlog-") as folder:
        file = files.open(f"{folder}/lines", write=True, create=True)
        try:
            if path == "-":
                spool(sys.stdin.buffer, file)
            else:
                with open(path, "rb") as source:
                    spool(source, file)
            yield file
        finally:
            file.close()
