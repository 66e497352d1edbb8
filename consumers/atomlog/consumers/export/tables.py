"""The tables of an export and their columns. docs/export.md describes each; a test holds the two together.

Ids are UUID text, times microseconds since 1970 in UTC. Names that SQL reserves are avoided.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

FORMAT: Final = 1

Kind = Literal["string", "binary", "int32", "int64", "float32", "bool", "timestamp", "strings", "structs"]
Row = tuple[Any, ...]
"""The cells of one row, in the order of the table's columns. A struct is a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`timestamp`: µs, UTC. `strings`: a list of texts. `structs`: a list of structs of `parts`."""

    name: str
    kind: Kind
    nullable: bool = False
    parts: "tuple[Column, ...]" = ()

    @property
    def shown(self) -> str:
        """The type as the documentation writes it."""
        if self.kind == "structs":
            return f"list<{', '.join(f'{part.name} {part.shown}' for part in self.parts)}>"
        return "list<string>" if self.kind == "strings" else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`by_partition`: one file for each partition of the log, else one in all."""

    name: str
    columns: tuple[Column, ...]
    by_partition: bool = True


def _column(text: str, *parts: Column) -> Column:
    """`name kind`, with a question mark where it may be null."""
    name, kind = text.split()
    return Column(name=name, kind=kind.rstrip("?"), nullable=kind.endswith("?"), parts=parts)  # type: ignore[arg-type]


def _columns(*texts: str | Column) -> tuple[Column, ...]:
    return tuple(text if isinstance(text, Column) else _column(text) for text in texts)


OBSERVED: Final = _columns("partition int32", "position int64")
ORIGIN: Final = _columns("source string", "source_revision string", "from_byte int64", "to_byte int64", "sha256 string")
SLOT: Final = _columns(
    "role string", "target string", "pinned string?", "include bool", "required bool", "order_key binary"
)
SHOWN_ROW: Final = _columns(
    "handle string", "atom string", "revision string", "score float32?", "status string", "sealed bool"
)
RANGE: Final = _columns("role string", "target string", "complete bool")

REVISIONS: Final = Table(
    name="revisions",
    columns=_columns(
        "partition int32",
        "position int64",
        "index int32",
        "space string",
        "atom string",
        "revision string",
        "previous string?",
        "current bool",
        "retired bool",
        "schema string",
        "policy string",
        "principal string",
        "term int64",
        "recorded_at timestamp",
        "has_valid_time bool",
        "valid_from timestamp?",
        "valid_to timestamp?",
        "sealed bool",
        "erased bool",
        "value string?",
        "text string?",
        "kind string?",
        "activity string?",
        "model string?",
        _column("origins structs?", *ORIGIN),
        _column("slots structs", *SLOT),
        "encoders strings",
        "generator string",
    ),
)
INPUTS: Final = Table(
    name="inputs",
    columns=_columns(
        "partition int32",
        "position int64",
        "index int32",
        "atom string",
        "revision string",
        "kind string",
        "input_atom string?",
        "input_revision string?",
        "role string?",
        "target string?",
        "selector_digest string?",
        _column("observed structs", *OBSERVED),
        "complete bool?",
        "empty bool?",
    ),
)
RELATIONS: Final = Table(
    name="relations",
    columns=_columns(
        "partition int32",
        "atom string",
        "slot int32",
        "role string",
        "target string",
        "pinned string?",
        "include bool",
        "required bool",
        "order_key binary",
        "schema string",
        "revision string",
        "born int64",
        "died int64?",
    ),
)
MEMBERSHIPS: Final = Table(
    name="memberships",
    columns=_columns(
        "partition int32",
        "membership string",
        "group_atom string",
        "member_atom string",
        "pinned string?",
        "order_key binary",
        "revision string",
        "born int64",
        "died int64?",
    ),
)
RECEIPTS: Final = Table(
    name="receipts",
    by_partition=False,
    columns=_columns(
        "receipt string",
        "recorded_at timestamp",
        "principal string",
        "mode string",
        "session string?",
        "continues string?",
        _column("positions structs", *OBSERVED),
        _column("shown structs", *SHOWN_ROW),
        _column("ranges structs", *RANGE),
        "encoders strings",
        "scoring string?",
        "renderer string",
        "tokenizer string?",
        "budget string",
        "truncations string",
        "body_sha256 string",
    ),
)
TABLES: Final[Mapping[str, Table]] = {
    table.name: table for table in (REVISIONS, INPUTS, RELATIONS, MEMBERSHIPS, RECEIPTS)
}
