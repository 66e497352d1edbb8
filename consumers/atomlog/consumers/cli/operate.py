"""log dump, rebuild, verify, replay, consume."""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import click

from atomlog.consumers.assignment import parse_assignment
from atomlog.consumers.cli.arguments import AT, SECONDS, complete_with
from atomlog.consumers.cli.output import emit, emit_event, emit_json, emit_table, positions
from atomlog.consumers.cli.progress import progress_bars
from atomlog.consumers.cli.session import Session, example, run, settings, with_session
from atomlog.consumers.consume import run_consumer
from atomlog.consumers.log_dump import log_dump
from atomlog.consumers.parts import PROJECTIONS, open_parts
from atomlog.consumers.rebuild import first_error
from atomlog.consumers.rebuild import rebuild as rebuild_projections
from atomlog.consumers.rebuild import verify as verify_projections
from atomlog.consumers.rebuild_job import RebuildReport
from atomlog.consumers.replay import ReplayReport, replay_until
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.ids import invalid
from atomlog.kernel.system import SystemFiles
from atomlog.kernel.times import parse_time

HEADS: Final = "heads"


@click.group(name="log")
def log_group() -> None:
    """The log itself."""


@log_group.command(epilog=example("atomlog log dump", "atomlog log dump --partition 0 --since 100 --json"))
@click.option("--partition", type=int, metavar="N", help="Only this partition.")
@click.option("--since", default=0, show_default=True, metavar="POSITION", help="From this position on.")
@click.option("--until", type=int, metavar="POSITION", help="Up to this position, not included.  [default: the end]")
@with_session
def dump(session: Session, partition: int | None, since: int, until: int | None) -> None:
    """Every record with its verdict: effective, or void and why.

    It takes no lock and works beside every other process. One that was killed goes on with --since.
    """
    run(_dump(session, partition, since, until))


@click.command(epilog=example("atomlog rebuild", "atomlog rebuild postings vectors --force"))
@click.argument("names", metavar="[NAME]…", nargs=-1, shell_complete=complete_with(*PROJECTIONS, HEADS))
@click.option("--force", is_flag=True, help="Exchange it even where it differs from the live one.")
@with_session
def rebuild(session: Session, names: tuple[str, ...], *, force: bool) -> None:
    """Build projections anew from the log, compare them with the live ones, and exchange them.

    Without NAME all but heads. Ends with 70 when one differs.
    """

    def work(progress: Callable[[str, int, int], None]) -> Awaitable[Sequence[RebuildReport]]:
        return rebuild_projections(
            session.directory,
            names or None,
            force=force,
            settings=settings(),
            master_key_file=session.master_key_file,
            progress=progress,
            on_event=session.say_event,
        )

    _report(session, "rebuilding", work)


@click.command(epilog=example("atomlog verify", "atomlog verify ids --json"))
@click.argument("names", metavar="[NAME]…", nargs=-1, shell_complete=complete_with(*PROJECTIONS, HEADS))
@with_session
def verify(session: Session, names: tuple[str, ...]) -> None:
    """Build projections anew from the log and compare them with the live ones; change nothing.

    Without NAME all. Ends with 70 when one differs.
    """

    def work(progress: Callable[[str, int, int], None]) -> Awaitable[Sequence[RebuildReport]]:
        return verify_projections(
            session.directory,
            names or None,
            settings=settings(),
            master_key_file=session.master_key_file,
            progress=progress,
            on_event=session.say_event,
        )

    _report(session, "verifying", work)


@click.command(epilog=example("atomlog consume vectors", "atomlog consume ids relations postings --wait"))
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_with(*PROJECTIONS))
@click.option("--wait", is_flag=True, help="Wait while another process follows, instead of ending.")
@click.option("--partitions", metavar="N,…", help="From now on only these, e.g. 0,2 or 0-3; or all.")
@click.option("--status-every", type=SECONDS, metavar="SECONDS", help="Say the status so often.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve a page for Prometheus there.")
@click.option("--listen", metavar="HOST:PORT", help="Of a shared store: answer reads of other nodes there.")
@click.option("--advertise", metavar="HOST", help="What the others connect to, where it is not that host.")
@click.option("--name", metavar="NAME", help="What this process is called in the status.")
@with_session
def consume(
    session: Session,
    names: tuple[str, ...],
    *,
    wait: bool,
    partitions: str | None,
    status_every: float | None,
    metrics: str | None,
    listen: str | None,
    advertise: str | None,
    name: str | None,
) -> None:
    """Follow the log for these projections in a process of its own, until SIGTERM or Ctrl-C.

    What happens is printed, a line of JSON each.
    """
    code = run(
        run_consumer(
            session.directory,
            names,
            settings=settings(),
            master_key_file=session.master_key_file,
            on_event=emit_event,
            wait=wait,
            partitions=parse_assignment(partitions, "--partitions"),
            status_seconds=status_every,
            metrics_address=metrics,
            listen=listen,
            advertise=advertise,
            name=name,
        )
    )
    click.get_current_context().exit(code)


@click.command(
    epilog=example("atomlog replay --until 1042 --to ./then", "atomlog replay --until 2026-03-01T00:00:00Z --to ./then")
)
@click.option("--until", required=True, metavar="POSITION|TIME", help="17, 0:17,1:5, or a time with offset.")
@click.option("--to", "target", required=True, metavar="DIR", help="An absent or empty directory.")
@with_session
def replay(session: Session, until: str, target: str) -> None:
    """Make a store as of then, in a directory of its own, for reading only.

    It names the master key of this store; the key is not copied.
    """
    is_time = until.count("-") > 1
    try:
        at = None if is_time else AT.convert(until, None, None)
    except click.BadParameter:
        message = f"--until: {until!r} is neither a position (17, or 0:17,1:5) nor a time with offset"
        raise click.UsageError(message) from None

    async def work() -> ReplayReport:
        config = StoreConfig.load(SystemFiles(), session.directory)
        with progress_bars("replaying") as progress:
            return await replay_until(
                session.directory,
                target,
                positions=_everywhere(at, config.partitions),
                time_us=parse_time(until, "--until") if is_time else None,
                settings=settings(),
                master_key_file=session.master_key_file,
                progress=progress,
            )

    found = run(work())
    if session.as_json:
        emit_json(found.to_dict())
        return
    emit(f"{found.directory}: {found.records} records, up to {positions(found.positions)}")
    emit_table([(f"  {report.name}", f"{report.rows} rows") for report in found.projections])


COMMANDS = (log_group, rebuild, verify, replay, consume)


def _everywhere(at: int | Mapping[int, int] | None, partitions: int) -> Mapping[int, int] | None:
    """A position of every partition; a single number stands for the only one."""
    if isinstance(at, int):
        if partitions > 1:
            raise invalid("--until", f"the store has {partitions} partitions; write 0:N,1:N,…")
        return {0: at}
    return at


def _report(
    session: Session,
    label: str,
    work: Callable[[Callable[[str, int, int], None]], Awaitable[Sequence[RebuildReport]]],
) -> None:
    with progress_bars(label) as progress:

        async def reports() -> Sequence[RebuildReport]:
            return await work(progress)

        found = run(reports())
    if session.as_json:
        for report in found:
            emit_json(report.to_dict())
    else:
        emit_table([_report_cells(report) for report in found])
    for report in found:
        if report.swapped and report.error is not None:
            click.echo(f"{report.name}: {report.error['code']}: {report.error['message']}", err=True)
    error = first_error(found)
    if error is not None:
        click.echo(f"error: {error.code}: {error.message}", err=True)
        click.get_current_context().exit(error.exit_code)


def _report_cells(report: RebuildReport) -> tuple[str, ...]:
    verdict = {True: "equal", False: "UNEQUAL", None: "not compared"}[report.equal]
    swapped = f"now {report.generation}" if report.swapped else "not exchanged"
    digest = (report.digest_rebuilt or "")[:16]
    where = f"at {positions(report.positions)}"
    return report.name, verdict, where, f"{report.rows} rows", digest, f"{report.seconds:.1f} s", swapped


async def _dump(session: Session, partition: int | None, since: int, until: int | None) -> None:
    config = StoreConfig.load(SystemFiles(), session.directory)
    if partition is not None and not 0 <= partition < config.partitions:
        raise invalid("--partition", f"{partition} is none; the store has {config.partitions}, from 0")
    parts = open_parts(
        session.directory,
        config,
        settings=settings(),
        master_key_file=session.master_key_file,
        read_only=True,
        on_event=session.say_event,
    )
    try:
        await parts.start()
        with progress_bars("reading", is_shown=not sys.stdout.isatty()) as progress:
            for number in range(config.partitions) if partition is None else (partition,):
                genesis, told = config.genesis(number), partial(progress, str(number))
                records = log_dump(parts.log, genesis, number, since=since, until=until, progress=told)
                async with aclosing(records) as dumped:
                    async for record in dumped:
                        _emit_record(session, record)
    finally:
        await parts.close()


def _emit_record(session: Session, record: Mapping[str, Any]) -> None:
    if session.as_json:
        emit_json(record)
        return
    place = f"{record['partition']}:{record['position']}"
    verdict = record["verdict"] if record["reason"] is None else f"{record['verdict']} ({record['reason']})"
    chain = (record["chain"] or "")[:8]
    counts = f"term {record['term']}  seq {record['seq']}  {record['size']} bytes"
    emit(f"{place:>10}  {record['kind'] or '?':<13}  {counts}  {chain}  {verdict}")
