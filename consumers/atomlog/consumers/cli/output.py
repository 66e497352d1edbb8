"""What commands print: results on stdout, messages on stderr. JSON is one line; text for people is short and safe."""

import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from atomlog.consumers.events import Event, stamped
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import error_result
from atomlog.kernel.system import SystemClock
from atomlog.kernel.text import search_text
from atomlog.kernel.times import format_time
from atomlog.projections.read.page import Page, Row

TEXT_CHARACTERS: Final = 72  # of a row's text
DETAILS_SHOWN: Final = 10  # of an error; the rest is counted


def emit_json(value: Any) -> None:
    """One line of JSON on stdout, in UTF-8 whatever the locale."""
    try:
        line = jsontext.dumps(value)
    except TypeError:  # an argument or the name of a file that is no UTF-8, in a message
        line = jsontext.dumps(_escaped(value))
    emit_bytes(line + b"\n")


def emit_event(event: Event) -> None:
    """What a long-running process says: one line of JSON on stdout, with time and level."""
    emit_json(stamped(event, SystemClock().now_us()))


def _escaped(value: Any) -> Any:
    """The same with what is no character written as `\\udcff`."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value


def emit_bytes(data: bytes) -> None:
    """Exactly these bytes on stdout."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def emit(line: str) -> None:
    """One line for a person on stdout; control characters in it do not reach the terminal."""
    emit_bytes(printable(line).encode("utf-8", "backslashreplace") + b"\n")


def emit_table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> None:
    """Columns as wide as needed, the last one open."""
    table = [tuple(map(str, row)) for row in rows]
    if heads and table:
        table.insert(0, tuple(heads))
    widths = [max(map(width, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell + " " * (size - width(cell)) for cell, size in zip(row, widths, strict=True)]
        emit("  ".join(cells).rstrip())


def emit_page(page: Page, *, explain: bool = False, history: bool = False) -> None:
    """A line an atom: handle, id, schema, text. What else there is to know goes to stderr."""
    for row in page.atoms:
        emit("  ".join(_cells(row, history=history)))
        if explain and row.match_reason:
            emit(f"    {jsontext.dumps(dict(row.match_reason)).decode()}")
    for line in _footer(page):
        click.echo(line, err=True)


def show_error(error: AtomlogError, *, as_json: bool) -> None:
    """The error for a person on stderr; as JSON on stdout too, where the result would have been."""
    if as_json:
        emit_json(error_result(error.to_dict()))
    click.echo(printable(f"error: {error.code}: {error.message}"), err=True)
    if len(error.details) > 1:
        for detail in error.details[:DETAILS_SHOWN]:
            click.echo(printable(f"  {detail.get('path', '')}: {detail.get('message', '')}"), err=True)
        if len(error.details) > DETAILS_SHOWN:
            click.echo(f"  and {len(error.details) - DETAILS_SHOWN} more; --json shows all", err=True)


def printable(text: str) -> str:
    """The text without anything that a terminal would obey."""
    return "".join(" " if character in "\n\r\t" else character if _is_shown(character) else "�" for character in text)


def width(text: str) -> int:
    """Columns of a terminal: wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def shortened(text: str, columns: int = TEXT_CHARACTERS) -> str:
    """The beginning of a text, in so many columns."""
    text = " ".join(text[: columns * 4].split())
    if width(text) <= columns:
        return text
    while width(text) > columns - 1:
        text = text[:-1]
    return f"{text}…"


def counted(count: int, one: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {one}{'' if count == 1 else 's'}"


def positions(value: Mapping[int, int]) -> str:
    """`17`, or `0:17,1:5` over several partitions."""
    if value.keys() == {0}:
        return str(value[0])
    return ",".join(f"{partition}:{position}" for partition, position in sorted(value.items()))


def _cells(row: Row, *, history: bool) -> list[str]:
    cells = [row.handle, format_id(row.revision if history else row.atom)]
    if history:
        cells.append(format_time(row.recorded_at_us))
    if row.score is not None:
        cells.append(f"{row.score:.3f}")
    cells.append(row.schema)
    if row.status != "current" and not (history and row.status == "superseded"):
        cells.append(f"[{row.status}]")
    cells.append(_text(row))
    return cells


def _text(row: Row) -> str:
    """What the atom says; of one without text, what it relates."""
    if row.sealed:
        return "(sealed)"
    text = None if row.value is None else search_text(row.schema, row.value)
    if text:
        return shortened(text)
    return " ".join(f"{slot.role}={format_id(slot.target)}" for slot in row.slots)


def _footer(page: Page) -> Iterable[str]:
    at = positions({partition: at.position for partition, at in page.receipt.positions.items()})
    yield f"{counted(len(page.atoms), 'row')} at {at}; receipt {format_id(page.receipt.receipt)}"
    diagnostics = page.diagnostics
    behind = {name: sum(lag.values()) for name, lag in diagnostics.lag.items()}
    if any(behind.values()):
        yield f"behind the log: {', '.join(f'{name} by {lag} records' for name, lag in behind.items() if lag)}"
    if diagnostics.missing:
        yield f"not found, or not visible to you: {', '.join(map(format_id, diagnostics.missing))}"
    if diagnostics.unembedded:
        yield f"{diagnostics.unembedded} atoms have no vector (yet) and could not be compared"
    for cut in diagnostics.truncated:
        yield f"cut: {_in_words(cut)}"
    if page.continuation is not None:
        yield f"more: --continue {page.continuation}"


def _in_words(cut: Mapping[str, Any]) -> str:
    """`candidates: limit 1000`"""
    rest = ", ".join(
        str(value) if name == "why" else f"{name} {value}" for name, value in cut.items() if name != "part"
    )
    return f"{cut.get('part')}: {rest}"


def _is_shown(character: str) -> bool:
    """False for controls, and for the marks that turn the direction of what follows."""
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs") or character in "\u200c\u200d"
