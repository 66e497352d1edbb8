"""The table has every file that an open store has, and the docs have the table."""

import re

from tests.corruption.store import Sound
from tests.corruption.table import KINDS, kind_of
from tests.support.commands import ROOT


def test_every_file_of_a_store_is_of_a_known_kind(sound: Sound) -> None:
    unknown = [path for path in sound.files if kind_of(path) is None]
    assert not unknown, (
        f"a new kind of file: give it a row in tests/corruption/table.py and docs/operations.md: {unknown}"
    )


def test_the_store_has_a_file_of_every_kind(sound: Sound) -> None:
    found = {kind.name for path in sound.files if (kind := kind_of(path)) is not None}
    assert found == {kind.name for kind in KINDS}


def test_no_file_is_of_two_kinds(sound: Sound) -> None:
    assert all(sum(kind.fits(path) for kind in KINDS) == 1 for path in sound.files)


def test_the_docs_say_of_every_kind_what_happens_and_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("### Damage, file by file")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", section, flags=re.MULTILINE)
    assert rows[0] == "file"
    assert rows[1:] == [kind.name for kind in KINDS]


def test_the_codes_of_the_table_stand_in_the_docs() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("### Damage, file by file")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, flags=re.MULTILINE))
    for kind in KINDS:
        assert kind.codes == set(re.findall(r"`([A-Z]+_?[A-Z_]+)`", rows[kind.name])) - {"CURRENT"}, kind.name
