"""A page on its way from the node that made it to the one that was asked.

What goes over is the receipt, what was asked for (for `verify`), and the revisions of the rows as ids keeps them: what
is sealed stays sealed on the way. The receiver renders the rows from them by the functions that every replay uses, and
the bytes must be those that the receipt was made of.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from atomlog.kernel import jsontext
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import parse_id
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.page import Diagnostics, Page
from atomlog.projections.read.reader import ReadOptions
from atomlog.projections.read.receipts import positions_dict, positions_of, receipt_from_bytes
from atomlog.projections.read.replay import rendered_again

_OPTIONS = ("consistency", "as_of_us", "limit", "timeout_ms", "session", "principal", "continuation", "network_calls")


def options_dict(options: ReadOptions) -> dict[str, Any]:
    """The JSON of options; those that are for this process alone stay here."""
    shown = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name) is not None}
    if options.at is not None:
        shown["at"] = positions_dict(options.at) if isinstance(options.at, Mapping) else options.at
    if options.at_least is not None:
        shown["at_least"] = positions_dict(options.at_least)
    return shown


def options_from(found: Mapping[str, Any]) -> ReadOptions:
    """What `options_dict` described. ValueError, TypeError or KeyError when it is none."""
    at, at_least = found.get("at"), found.get("at_least")
    return ReadOptions(
        **{name: found[name] for name in _OPTIONS if name in found},
        at=positions_of(at) if isinstance(at, Mapping) else at,
        at_least=None if at_least is None else positions_of(at_least),
    )


def page_dict(page: Page, search: bytes, revisions: Sequence[bytes]) -> dict[str, Any]:
    """A page for another node. `search`: what its receipt is kept with; `revisions`: those of its rows, in order."""
    return {
        "receipt": page.receipt.to_dict(),
        "search": search.hex(),
        "revisions": [data.hex() for data in revisions],
        "continuation": page.continuation,
        "diagnostics": page.diagnostics.to_dict(),
    }


async def take_page(found: Mapping[str, Any], content: ContentOpener, journal: Journal) -> Page:
    """The page that another node made; its receipt is kept here, too.

    Raises CORRUPT when it is none, or not the one that its receipt is of; KEY_UNAVAILABLE, PURGED.
    """
    try:
        receipt = receipt_from_bytes(jsontext.dumps(found["receipt"]))
        search = bytes.fromhex(found["search"])
        stored = [bytes.fromhex(data) for data in found["revisions"]]
        continuation, diagnostics = found["continuation"], _diagnostics(found["diagnostics"])
        if len(stored) != len(receipt.rows) or not isinstance(continuation, str | None):
            raise ValueError("it has not as many revisions as rows, or its continuation is no text")
    except (AtomlogError, KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"another node's page is not understood: {type(error).__name__}: {error}"
        raise fail("CORRUPT", f"{message}; run the same version on both") from None
    rows = await rendered_again(receipt, stored, content)
    await journal.record(receipt, search, is_copy=True)
    return Page(atoms=rows, receipt=receipt, continuation=continuation, diagnostics=diagnostics)


def _diagnostics(found: Mapping[str, Any]) -> Diagnostics:
    return Diagnostics(
        lag={name: positions_of(lag) for name, lag in found["lag"].items()},
        truncated=tuple(dict(cut) for cut in found["truncated"]),
        approximate=bool(found["approximate"]),
        unembedded=int(found["unembedded"]),
        missing=tuple(parse_id(atom, "missing") for atom in found["missing"]),
    )
