"""Ways to name an atom outside of a batch, e.g. on the command line."""

from typing import Any

import pytest

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.model import Handle
from atomlog.kernel.references import parse_atom_id, parse_handle

A = bytes([0xA1]) * 16


@pytest.mark.parametrize(
    ("name", "atom"),
    [
        (format_id(A), A),
        ("key:tea", keyed_id("notes", "notes", "tea")),
        ({"key": "tea", "policy": "p"}, keyed_id("notes", "p", "tea")),
        (f"{format_id(A)}#a7", Handle(A, "a7")),
    ],
    ids=str,
)
def test_an_id_a_key_and_a_row_of_a_receipt_name_an_atom(name: Any, atom: Any) -> None:
    assert parse_atom_id(name, "ID", space="notes") == atom


@pytest.mark.parametrize("text", ["tea", "sencha/en", "0199"])
def test_a_bare_name_is_told_the_ways_to_name_an_atom(text: str) -> None:
    with pytest.raises(InvalidError, match='names no atom; write a UUID, "key:TEXT"'):
        parse_atom_id(text, "ID", space="notes")


def test_an_alias_means_nothing_outside_of_a_batch() -> None:
    with pytest.raises(InvalidError, match="inside a batch only"):
        parse_atom_id("@p", "ID", space="notes")


def test_every_failing_part_of_a_key_is_named() -> None:
    with pytest.raises(InvalidError) as raised:
        parse_atom_id({"key": "a\x00", "space": "No", "policy": 5, "x": 1}, "atom", space="notes")
    assert {found["path"] for found in raised.value.details} == {"atom.x", "atom.space", "atom.policy", "atom.key"}


@pytest.mark.parametrize(
    "text", ["", "#", "#a1", "x#a1", f"{format_id(A)}#", f"{format_id(A)}#a", f"{format_id(A)}#a01"]
)
def test_what_is_no_row_of_a_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_handle(text, "ID")
