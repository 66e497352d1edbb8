"""get, history, relations, members, groups, recall, quote."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from atomlog.consumers.cli.arguments import ATOM_ID, JSON_FILE, JSON_OBJECT, with_read_options
from atomlog.consumers.cli.output import counted, emit, emit_bytes, emit_json, emit_page
from atomlog.consumers.cli.session import Session, example, run, with_keys, with_session
from atomlog.kernel.ids import format_id
from atomlog.projections.read.page import Page

ORIGIN_DIGITS_MAX: Final = 9

if TYPE_CHECKING:
    from atomlog.consumers.freeze import Frozen
    from atomlog.consumers.quote import Quote
    from atomlog.consumers.store import AsyncStore


@click.command(epilog=example("atomlog get key:tea --space notes", "atomlog get 0199… --as-of 2026-03-01T00:00:00Z"))
@click.argument("ids", metavar="ID…", nargs=-1, required=True, type=ATOM_ID)
@click.option("--revision", metavar="ID", help="This revision of the one atom.")
@with_read_options
@with_keys
@with_session
def get(session: Session, ids: tuple[Any, ...], **options: Any) -> None:
    """Atoms by id: their heads, or as of a position or time.

    An ID is a UUID, key:TEXT, or RECEIPT#a1.
    """
    _show(session, ("ids",), lambda store: store.get(list(ids), **_named(options)))


@click.command(epilog=example("atomlog history key:tea --space notes"))
@click.argument("atom", metavar="ID", type=ATOM_ID)
@with_read_options
@with_keys
@with_session
def history(session: Session, atom: Any, **options: Any) -> None:
    """Every revision of an atom, oldest first."""
    _show(session, ("ids",), lambda store: store.history(atom, **_named(options)), history=True)


@click.command(
    epilog=example("atomlog relations --target key:tea --role group --space notes", "atomlog relations --of 0199…")
)
@click.option("--target", metavar="ID", type=ATOM_ID, help="Atoms that refer to this one.")
@click.option("--role", metavar="NAME", help="… in this role.")
@click.option("--of", metavar="ID", type=ATOM_ID, help="Atoms that this one refers to.")
@with_read_options
@with_keys
@with_session
def relations(session: Session, **options: Any) -> None:
    """Who refers to an atom, or what an atom refers to."""
    if (options["target"] is None) == (options["of"] is None):
        raise click.UsageError("give either --target or --of")
    _show(session, ("ids", "relations"), lambda store: store.relations(**_named(options)))


@click.command(epilog=example("atomlog members key:tea --not key:green --space notes"))
@click.argument("group", metavar="GROUP", type=ATOM_ID)
@click.option("--and", "and_", metavar="GROUP", multiple=True, type=ATOM_ID, help="… that are in this group too.")
@click.option("--or", "or_", metavar="GROUP", multiple=True, type=ATOM_ID, help="… or in this group.")
@click.option("--not", "not_", metavar="GROUP", multiple=True, type=ATOM_ID, help="… and not in this group.")
@click.option("--include-retired", is_flag=True, help="Members that are retired, too.")
@click.option("--freeze", "as_manifest", is_flag=True, help="Write all of them down in --space as pinned versions.")
@with_read_options
@with_keys
@with_session
def members(session: Session, group: Any, *, as_manifest: bool, **options: Any) -> None:
    """The members of a group: (GROUP or --or …) and --and … but not --not …."""
    if not as_manifest:
        filters = ("postings",) if options["and_"] or options["not_"] else ()
        _show(session, ("ids", "relations", *filters), lambda store: store.members(group, **_named(options)))
        return
    if options["limit"] is not None or options["continuation"] is not None:
        raise click.UsageError("--freeze takes all members; leave out --limit and --continue")

    async def work() -> "Frozen":
        from atomlog.consumers.freeze import freeze

        async with session.current_store() as store:
            return await freeze(store, group, **_named(options))

    frozen = run(work())
    if session.as_json:
        emit_json(frozen.to_dict())
    else:
        emit(f"{format_id(frozen.manifest)}  {counted(frozen.members, 'member')} in {counted(frozen.pages, 'page')}")


@click.command(epilog=example("atomlog groups key:sencha --space notes"))
@click.argument("member", metavar="ID", type=ATOM_ID)
@with_read_options
@with_keys
@with_session
def groups(session: Session, member: Any, **options: Any) -> None:
    """The groups that an atom is a member of."""
    _show(session, ("ids", "relations"), lambda store: store.groups(member, **_named(options)))


@click.command(epilog=example("atomlog recall 'green tea' --limit 5", "atomlog recall 緑茶 --explain"))
@click.argument("text", required=False)
@click.option("--context", metavar="TEXT", help="What the question is about; compared apart.")
@click.option("--reasoning", metavar="TEXT", help="What is thought so far; compared apart.")
@click.option(
    "--vector",
    "vectors",
    metavar="FILE",
    type=JSON_FILE,
    help='A query vector as JSON: {"supplied.mine/1/3/cosine": [0.1, 0.2, 0.3]}.',
)
@click.option(
    "--scope",
    metavar="JSON",
    type=JSON_OBJECT,
    help='Only among these: {"schema": "source", "groups": {"and": ["key:tea"]}}.',
)
@click.option("--explain", is_flag=True, help="Why each row is there.")
@with_read_options
@with_keys
@with_session
def recall(session: Session, text: str | None, *, explain: bool, **options: Any) -> None:
    """Atoms by natural language, most relevant first."""
    if text is None and not any(options[name] for name in ("context", "reasoning", "vectors")):
        raise click.UsageError("give a TEXT, --context, --reasoning or --vector")
    _show(session, None, lambda store: store.recall(text, **_named(options)), explain=explain)


@click.command(epilog=example("atomlog quote 0199…#0", "atomlog quote key:summary#1 --space notes"))
@click.argument("origin", metavar="ID#N")
@click.option("--revision", metavar="ID", help="Of this revision of the atom.")
@with_keys
@with_session
def quote(session: Session, origin: str, **options: Any) -> None:
    """The exact bytes of the N-th origin of an atom (from 0), checked against the digest taken when it was written."""
    atom, mark, number = origin.rpartition("#")
    if not mark or not number.isdecimal() or len(number) > ORIGIN_DIGITS_MAX:
        raise click.UsageError(f"{origin!r} names no origin; write ID#N, e.g. key:summary#0")

    async def work() -> "Quote":
        async with session.current_store(("ids",)) as store:
            return await store.quote(ATOM_ID.convert(atom, None, None), int(number), **_named(options))

    found = run(work())
    if session.as_json:
        emit_json(found.to_dict())
    else:
        emit_bytes(found.text.encode())


COMMANDS = (get, history, relations, members, groups, recall, quote)


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Options under the store's own names, those that were not given left out."""
    given = {"policy" if name == "key_policy" else name: value for name, value in options.items()}
    return {name: value for name, value in given.items() if value is not None}


def _show(
    session: Session,
    projections: Sequence[str] | None,
    read: "Callable[[AsyncStore], Awaitable[Page]]",
    **how: bool,
) -> None:
    """Read and print. `projections`: those that the read needs, None = all."""

    async def work() -> Page:
        async with session.current_store(projections) as store:
            return await read(store)

    page = run(work())
    if session.as_json:
        emit_json(page.to_dict())
    else:
        emit_page(page, **how)
