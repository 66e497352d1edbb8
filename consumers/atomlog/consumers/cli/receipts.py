"""receipt show, replay, verify; outcome."""

import click

from atomlog.consumers.cli.output import emit, emit_bytes, emit_json, emit_page, emit_table, positions
from atomlog.consumers.cli.session import Session, example, run, with_session
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import Outcome
from atomlog.kernel.times import format_time
from atomlog.projections.read.page import Page
from atomlog.projections.read.receipts import ReadReceipt
from atomlog.projections.read.replay import Verification


@click.group()
def receipt() -> None:
    """What a read returned, and from what."""


@receipt.command(epilog=example("atomlog receipt show 0199…"))
@click.argument("receipt_id", metavar="ID")
@with_session
def show(session: Session, receipt_id: str) -> None:
    """A receipt: rows, positions, indexes. It holds no text."""

    async def work() -> ReadReceipt:
        async with session.current_store(()) as store:
            return await store.receipt(receipt_id)

    found = run(work())
    if session.as_json:
        emit_json(found.to_dict())
        return
    emit(f"receipt   {format_id(found.receipt)}")
    emit(f"recorded  {format_time(found.recorded_at_us)}")
    emit(f"mode      {found.mode} at {positions(found.observed())}")
    emit(f"body      {found.body_sha256.hex()}")
    emit_table(
        (f"  {name}", index.generation, f"at {positions(index.positions)}", f"behind {positions(index.lag)}")
        for name, index in found.indexes.items()
    )
    emit_table((f"  {row.handle}", format_id(row.atom), format_id(row.revision), row.status) for row in found.rows)


@receipt.command(epilog=example("atomlog receipt replay 0199…", "atomlog receipt replay 0199… --body | sha256sum"))
@click.argument("receipt_id", metavar="ID")
@click.option("--body", is_flag=True, help="Print exactly the bytes of the page's body.")
@with_session
def replay(session: Session, receipt_id: str, *, body: bool) -> None:
    """The page of a receipt again, the same bytes, without searching."""

    async def work() -> Page:
        async with session.current_store(("ids",)) as store:
            return await store.replay(receipt_id)

    page = run(work())
    if body:
        emit_bytes(page.body())
    elif session.as_json:
        emit_json(page.to_dict())
    else:
        emit_page(page)


@receipt.command(epilog=example("atomlog receipt verify 0199…"))
@click.argument("receipt_id", metavar="ID")
@with_session
def verify(session: Session, receipt_id: str) -> None:
    """Search again at the receipt's positions, and say how much is the same."""

    async def work() -> Verification:
        async with session.current_store() as store:
            found: Verification = await store.verify_receipt(receipt_id)
            return found

    found = run(work())
    if session.as_json:
        emit_json(found.to_dict())
        return
    method = "exact" if found.exact else "approximate"
    same = "the same rows" if found.equal else f"overlap {found.overlap:.3f}"
    emit(f"{same}: {found.rows} in the receipt, {found.found} now ({method} search)")
    for name, revisions in (("missing", found.missing), ("added", found.added)):
        for revision in revisions:
            emit(f"  {name}  {format_id(revision)}")


@click.command(epilog=example("atomlog outcome k-1 --space notes"))
@click.argument("key")
@click.option(
    "--space",
    envvar="ATOMLOG_SPACE",
    default="default",
    show_default=True,
    show_envvar=True,
    help="The space that was written to.",
)
@with_session
def outcome(session: Session, key: str, space: str) -> None:
    """What is known of an idempotency key: accepted, never, or unknown."""

    async def work() -> Outcome:
        async with session.store() as store:
            return await store.outcome(key, space=space)

    found = run(work())
    if session.as_json:
        emit_json(found.to_dict())
        return
    at = "" if found.result is None else f" at {found.result.receipt.partition}:{found.result.receipt.position}"
    emit(f"{found.state}{at}")


COMMANDS = (receipt, outcome)
