"""Text that other programs lose, cut or stumble over: kept byte for byte, found, or refused by name."""

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.client import AtomlogError, Store
from atomlog.kernel.settings import Settings
from tests.consumers.cli.driving import atomlog
from tests.hostile.asking import SPACE, a_batch, note, paths, recalled, refusal, texts, write

HALF: Final = "note \ud83d end"  # an emoji cut in half
PLACES: Final[dict[str, Any]] = {
    "value.text": lambda half: a_batch(note(half)),
    "value": lambda half: a_batch({"op": "create", "schema": "other", "value": half}),
    "a key inside a value": lambda half: a_batch({"op": "create", "schema": "other", "value": {"a": {half: 1}}}),
    "a list inside a value": lambda half: a_batch({"op": "create", "schema": "other", "value": [["x", half]]}),
    "key": lambda half: a_batch(note("x", key=half)),
    "schema": lambda half: a_batch(note("x", schema=half)),
    "policy": lambda half: a_batch(note("x", policy=half)),
    "as": lambda half: a_batch(note("x", **{"as": f"@{half}"})),
    "op": lambda half: a_batch({**note("x"), "op": half}),
    "an unknown field": lambda half: a_batch(note("x", **{half: 1})),
    "role": lambda half: a_batch(note("x", slots=[{"role": half, "target": "key:t"}])),
    "target": lambda half: a_batch(note("x", slots=[{"role": "about", "target": f"key:{half}"}])),
    "order_key": lambda half: a_batch(note("x", slots=[{"role": "about", "target": "key:t", "order_key": half}])),
    "valid_time": lambda half: a_batch(note("x", valid_time={"from": half})),
    "activity": lambda half: a_batch(note("x", provenance={"kind": "source", "activity": half})),
    "vector space": lambda half: a_batch(note("x", vectors={half: [1.0]})),
    "space": lambda half: {**a_batch(note("x")), "space": half},
    "idempotency_key": lambda half: {**a_batch(note("x")), "idempotency_key": half},
    "precondition": lambda half: a_batch(note("x"), preconditions=[{"type": "absent", "atom": f"key:{half}"}]),
    "session": lambda half: {**a_batch(note("x")), "session": half},
}
KEPT: Final = (
    "말/日本語/👨‍👩‍👧‍👦 family",
    "nul \0 inside",
    "\u202eright to left\u202c עברית العربية",
    "NFC \u00e9 が",
    "NFD e\u0301 か\u3099",
    "half ﾜｶﾞﾊｲ full ＡＢＣ ～ 〜",
    "\ufeffmark first, \ufffd and \uffff, \U0010ffff",
    "\r\n\t\x07\x1b[31mred\x7f\x85\u2028",
    " leading and trailing ",
    "\\ud83d is no emoji",
)


@pytest.mark.parametrize("place", PLACES)
def test_half_a_character_is_refused_with_its_path_and_the_batches_beside_it_live(store: Store, place: str) -> None:
    before, bad, after = a_batch(note("before")), PLACES[place](HALF), a_batch(note("after"))
    store.write(before)
    error = refusal(lambda: store.write(bad))
    assert error.code == "INVALID_INPUT"
    assert all(paths(error)), error.details
    store.write(after)
    for kept in (before, after):
        assert store.outcome(kept["idempotency_key"], space=SPACE).state == "accepted"


def test_half_a_character_in_one_of_a_hundred_members_names_that_one_and_writes_none(store: Store) -> None:
    changes = [note(f"member {n}" if n != 57 else HALF, key=f"hundred {n}") for n in range(100)]
    assert paths(refusal(lambda: store.write(a_batch(*changes)))) == ["changes[57].value.text"]
    missing = [f"key:hundred {n}" for n in range(100)]
    assert not store.get([*missing, write(store, note("there"))[0]["atom"]], space=SPACE).atoms[1:]


@pytest.mark.parametrize("form", ["escaped", "raw"])
def test_half_a_character_on_the_command_line_is_a_refused_line_and_the_others_are_written(
    tmp_path: Path, form: str
) -> None:
    lines = [json.dumps(a_batch(note(text, key=f"k{n}"))) for n, text in enumerate(("one", HALF, "three"))]
    if form == "raw":
        lines[1] = json.dumps(a_batch(note(HALF)), ensure_ascii=False)
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    done = atomlog("write", "--keep-going", "--json", stdin=raw, store=tmp_path / "s")
    assert [line["ok"] for line in done.jsons] == [True, False, True]
    assert done.jsons[1]["error"]["code"] == "INVALID_INPUT"
    assert done.code == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize("form", ["escaped", "raw"])
def test_half_a_character_in_an_imported_file_refuses_its_batch_alone(tmp_path: Path, form: str) -> None:
    lines = [
        json.dumps({"id": f"n-{n}", "text": t, "batch": f"b{n // 2}"}) for n, t in enumerate(["a", "b", "c", HALF])
    ]
    lines += [json.dumps({"id": "n-9", "text": "last"})]
    if form == "raw":
        lines[3] = json.dumps({"id": "n-3", "text": HALF, "batch": "b1"}, ensure_ascii=False)
    file = tmp_path / "lines.jsonl"
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    done = atomlog("import", "jsonl", file, "--space", SPACE, "--keep-going", store=tmp_path / "s")
    assert done.code == 2
    found = atomlog("get", "key:n-0", "key:n-1", "key:n-9", "--space", SPACE, "--json", store=tmp_path / "s").json
    assert [row["value"]["text"] for row in found["atoms"]] == ["a", "b", "last"]
    assert atomlog("get", "key:n-2", "--space", SPACE, store=tmp_path / "s").code == 5


@pytest.mark.parametrize("text", KEPT, ids=ascii)
def test_text_comes_back_byte_for_byte(store: Store, text: str) -> None:
    """As a value, as a key inside a value, and as a value that is nothing but text."""
    value = {"text": text, text: [text, {text: text}]}
    whole, alone = write(store, {**note(text), "value": value}, {**note(text), "schema": "other", "value": text})
    page = store.get([whole["atom"], alone["atom"]])
    assert [row.value for row in page.atoms] == [value, text]
    assert list(page.atoms[0].value) == sorted(value, key=str.encode)
    (line,) = [row for row in json.loads(page.body())["atoms"] if row["atom"] == whole["atom"]]
    assert line["value"]["text"].encode() == text.encode()
    assert [row.value for row in store.replay(page.receipt).atoms] == [value, text]


def test_two_normal_forms_of_a_text_are_two_texts_and_of_a_key_one_atom(store: Store) -> None:
    composed, decomposed = "caf\u00e9 ガ", unicodedata.normalize("NFD", "caf\u00e9 ガ")
    first, second = write(store, note(composed), note(decomposed))
    assert texts(store.get([first["atom"], second["atom"]])) == [composed, decomposed]
    write(store, note("keyed", key=composed))
    assert texts(store.get(f"key:{decomposed}", space=SPACE)) == ["keyed"]
    error = refusal(lambda: write(store, note("again", key=decomposed)))
    assert error.code == "REVISION_CONFLICT"


@pytest.mark.parametrize("bad", ["a\0b", "\0", "\x1f", "\x7f", "\x85"])
def test_a_control_character_in_a_key_is_refused_and_in_a_text_kept(store: Store, bad: str) -> None:
    for batch in (a_batch(note("x", key=bad)), {**a_batch(note("x")), "idempotency_key": bad}):
        assert refusal(lambda batch=batch: store.write(batch)).code == "INVALID_INPUT"  # type: ignore[misc]
    assert texts(store.get(write(store, note(bad + "x"))[0]["atom"])) == [bad + "x"]


def test_a_page_is_cut_by_the_bytes_of_what_is_sent_not_by_its_characters(tmp_path: Path) -> None:
    """Characters of four bytes, and such as JSON writes with six: the body stays below the limit."""
    limit = 40_000
    with Store.open(str(tmp_path / "s"), settings=Settings(page_bytes_max=limit)) as store:
        for text in ("👩‍👩‍👧" * 300, "\0" * 1_500, "日本語" * 900):
            made = [one["atom"] for one in write(store, *(note(text) for _ in range(12)))]
            seen: list[str] = []
            asked: dict[str, Any] = {}
            while True:
                page = store.get(made, **asked)
                assert 0 < len(page.body()) <= limit + 15_000  # one row is always given, however large
                assert all(row.value["text"] == text for row in page.atoms)
                assert len(page.body()) <= limit or len(page.atoms) == 1
                seen += [row["atom"] for row in json.loads(page.body())["atoms"]]
                if page.continuation is None:
                    break
                asked = {"continuation": page.continuation}
            assert seen == made


# -- found by what people type


FOUND: Final = {
    "リンゴを食べます": ("食べ", "食べます", "リンゴ", "ﾘﾝｺﾞ", "リンコ\u3099"),
    "吾輩はワガハイである": ("ﾜｶﾞﾊｲ", "ワガハイ", "ワカ\u3099ハイ", "吾輩"),
    "がんばる人": ("が", "か\u3099", "がんばる", "か\u3099んは\u3099る"),
    "東京～大阪": ("東京〜大阪", "東京～大阪", "大阪"),
    "see POL-358 first": ("POL-358", "pol-358", "POL 358", "358"),
    "the kettle doesn't boil": ("doesn't", "doesn’t kettle", "kettle"),
    "half: 50% off today": ("50%", "50"),
    "the path C:\\repo\\a|b there": ("C:\\repo\\a|b", "C:\\repo"),
    "ticket 0192f0c1-2b3a-7c4d-8e5f-0123456789ab": ("0192f0c1-2b3a-7c4d-8e5f-0123456789ab", "0192f0c1"),
    "all of it is NOT so": ("NOT", "not so"),
    "#tagged things": ("#tagged", "tagged"),
    "caf\u00e9 cr\u00e8me": ("cafe\u0301", "CAF\u00c9", "crème"),
    "Straße nach Köln": ("straße", "KÖLN"),
    "nul\0between words": ("between", "nul\0between"),
    "ＦＵＬＬ width ＡＢＣ": ("full", "ABC"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(str(tmp_path_factory.mktemp("library") / "store")) as opened:
        write(opened, *(note(text) for text in FOUND))
        yield opened


@pytest.mark.parametrize(("text", "query"), [(text, query) for text, queries in FOUND.items() for query in queries])
def test_a_text_is_found_by_what_people_type(library: Store, text: str, query: str) -> None:
    assert text in texts(recalled(library, query, limit=3))


@pytest.mark.parametrize(
    "query", ['"', "*", "'; --", "(", "~", "-", "%", "\\", "〜", "👨‍👩‍👧‍👦", "\0", "?!", "&&||!(){}[]^"]
)
def test_a_query_of_signs_alone_is_no_syntax_and_is_told_that_it_says_nothing(library: Store, query: str) -> None:
    page = recalled(library, query)
    assert page.atoms == ()
    (why,) = page.diagnostics.truncated
    assert (why["part"], "nothing in it to compare" in why["why"]) == ("text", True)


@pytest.mark.parametrize(
    "query", ["NOT", "AND OR NOT", "tagged AND NOT things", "title:tagged", "tagged^4", "tag*", "/tag/"]
)
def test_words_of_a_query_language_are_words(library: Store, query: str) -> None:
    page = recalled(library, query, limit=100)
    assert not page.diagnostics.truncated
    plain = recalled(library, "".join(c if c.isalnum() else " " for c in query).lower(), limit=100)
    assert [row.atom for row in page.atoms] == [row.atom for row in plain.atoms]


@pytest.mark.parametrize("query", ["", " ", "\n\t", "\u3000"])
def test_a_query_of_nothing_is_refused_with_what_to_do(library: Store, query: str) -> None:
    assert "is empty" in refusal(lambda: library.recall(query, space=SPACE)).message


# -- long


LONG: Final = {
    "a token of 70,000 bytes": "k" * 69_996 + "ｅ!",
    "a word of a megabyte": "日" * 349_525,
    "a text over every limit of an encoder": "word " * 250_000 + "the-last-word",
    "a line without end of emoji": "👨‍👩‍👧‍👦" * 40_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_is_whole_and_has_its_vector(store: Store, name: str) -> None:
    text = LONG[name]
    (made,) = write(store, note(text, key=name))
    assert texts(store.get(made["atom"])) == [text]
    page = recalled(store, text[:300] if name != "a line without end of emoji" else "anything")
    assert page.diagnostics.unembedded == 0
    if name != "a line without end of emoji":
        assert text in texts(page)
    assert store.status().to_dict()["projections"][-1]["health"] == "OK"


def test_the_last_word_of_a_long_text_counts_in_its_vector(store: Store) -> None:
    """Equal but for the last word, after a million characters: the query of that very text prefers the right one."""
    long = "word " * 200_000
    first, second = write(store, note(f"{long} zebra"), note(f"{long} quagga"))
    scores = {row.atom: row.score for row in recalled(store, "word zebra", limit=100).atoms}
    (zebra, quagga) = (scores.get(store.get(one["atom"]).atoms[0].atom) for one in (first, second))
    assert zebra is not None
    assert quagga is not None
    assert zebra > quagga


def test_a_query_beyond_its_limit_is_refused_not_cut(store: Store) -> None:
    error = refusal(lambda: store.recall("x" * 65_537, space=SPACE))
    assert (error.code, paths(error)) == ("INVALID_INPUT", ["selector.text"])
    assert isinstance(recalled(store, "x" * 65_536).atoms, tuple)


def test_a_text_beyond_the_limit_of_a_text_is_refused_with_both_numbers(store: Store) -> None:
    with pytest.raises(AtomlogError) as caught:
        write(store, note("x" * (64 * 1024 * 1024 + 1)))
    assert caught.value.code == "BOUND_EXCEEDED"
    assert "67108864" in caught.value.message.replace(",", "")
