"""JSON, times, ids, names, and the ways to name an atom: what a person or a program may type."""

from atomlog.kernel.ids import format_id, parse_id, parse_key, parse_name
from atomlog.kernel.jsontext import canonical, parse_json
from atomlog.kernel.model import Alias, Handle
from atomlog.kernel.references import parse_alias, parse_atom_ref, parse_handle, parse_revision_ref
from atomlog.kernel.settings import Settings
from atomlog.kernel.text import check_span, nfc_bytes, search_text, text_of
from atomlog.kernel.times import format_time, parse_time
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.projections.encoders.hashing import FeatureHasher
from tests.fuzz.engine import Target, agree

REFUSED = frozenset({"INVALID_INPUT", "BOUND_EXCEEDED"})


def json_text(data: bytes) -> None:
    value = parse_json(data)
    once = canonical(value, depth_max=65)
    again = parse_json(once)
    agree(again == value, "a value changes in its canonical form")
    agree(canonical(again, depth_max=65) == once, "the canonical form is not its own")


def any_text(data: bytes) -> str:
    """Text as it may reach a parser: lone surrogates too."""
    return data.decode("utf-8", "surrogatepass") if b"\xed" in data else data.decode("utf-8", "surrogateescape")


def time(data: bytes) -> None:
    time_us = parse_time(_text(data), "time")
    agree(parse_time(format_time(time_us), "time") == time_us, "a time changes when it is written")


def _text(data: bytes) -> str:
    try:
        return any_text(data)
    except UnicodeDecodeError:
        return data.decode("latin-1")


def names(data: bytes) -> None:
    """Each parser of one text; the first byte chooses."""
    text = _text(data[1:])
    match data[:1]:
        case b"i":
            agree(format_id(parse_id(text, "id")) == text.lower(), "an id reads as another")
        case b"n":
            agree(parse_name(text, "name") == text, "a name reads as another")
        case b"k":
            key = parse_key(text, "key")
            agree(parse_key(key, "key") == key and 0 < len(key.encode()) <= 512, "a key is not its own form")
        case b"v":
            agree(parse_vector_space(text, "space").id == text, "a vector space reads as another")
        case b"a":
            agree(parse_alias(text, "as") == text, "an alias reads as another")
        case b"h":
            found = parse_handle(text, "id")
            agree(f"{format_id(found.receipt)}#{found.handle}" == text.lower(), "a row of a receipt reads as another")
        case b"r":
            parse_revision_ref(text, "revision", aliases=("@a",))
        case _:
            _any_ref(text)


def _any_ref(text: str) -> None:
    found = parse_atom_ref(text, "atom", space="notes", aliases=("@a", "@日本"))
    agree(isinstance(found, Alias | Handle) or len(found) == 16, "an atom without an id")


def key_object(data: bytes) -> None:
    found = parse_atom_ref(parse_json(data, checked=False), "atom", space="notes", aliases=("@a",))
    agree(isinstance(found, Alias | Handle) or len(found) == 16, "an atom without an id")


def settings(data: bytes) -> None:
    """`NAME=VALUE` lines, as the environment has them."""
    pairs = (line.partition("=") for line in _text(data).split("\n"))
    environment = {f"ATOMLOG_{name}": value for name, _, value in pairs}
    found = Settings.from_environment(environment)
    agree(Settings() == found or bool(environment), "nothing changed a setting")


_HASHER = FeatureHasher(64)


def embedded_text(data: bytes) -> None:
    """Any text has a row of length 1 or 0, and the text that is searched is a text."""
    text = _text(data)
    row = _HASHER.rows([text])[0]
    size = float((row.astype("float64") ** 2).sum())
    agree(size == 0 or abs(size - 1) < 1e-4, "a row is neither of length 1 nor zeros")
    agree(bool((_HASHER.rows(["x", text])[1] == row).all()), "a row depends on the texts beside it")
    agree(text_of({"text": text}) == text, "a text is another")
    search_text("collection", {"title": text, "description": [text], "text": text})
    try:
        raw = nfc_bytes(text)
    except UnicodeEncodeError:
        return
    agree(len(raw) < 1 or check_span(raw, 0, len(raw)) is None, "the whole text is no span of it")


def _texts(*texts: str) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in texts]


_JSONS = (
    '{"a": [1, -0.0, 1.0, 1e300, 9223372036854775807], "b": {"日本語": null}, "": true}',
    '"\\ud83d\\ude00 \\u0000 \\\\"',
    "[" * 63 + "]" * 63,
    '{"k": 1.5, "k2": 0.1, "z": [{}, [], ""]}',
    " \n[1,\t2]\r\n",
)
_ID = "0192f0c1-2b3a-7c4d-8e5f-0123456789ab"
_NAMES = (
    *(f"i{_ID}", "nnotes.v1_a-b", "kthe key ÅÅか゛", "vhashing/1/512/cosine", "a@alias", f"h{_ID}#a12", f"r{_ID}"),
    *("r@a", f"x{_ID}", "xkey:the key", "x@a", f"x{_ID}#a1", "x@日本"),
)
_TEXTS = (
    "The kettle, it doesn't boil at 70 °C.",
    "食べ物のリンゴを食べます。ﾜｶﾞﾊｲ ハ か゛ ～〜",
    "👨‍👩‍👧‍👦 café café \u202eabc\u202c\0",
    "x" * 20_000,
)


def _key_objects() -> list[bytes]:
    return [b'{"key": "a", "space": "notes", "policy": "p"}', b'{"key": "b"}', b'"key:a"', b"null"]


TARGETS = [
    Target(name="json", json=True, decode=json_text, seeds=lambda: _texts(*_JSONS), codes=REFUSED, bytes_per_byte=800),
    Target(
        name="time",
        decode=time,
        seeds=lambda: _texts("2026-03-01T09:00:00.123456+09:00", "0001-01-01t00:00:00z", "9999-12-31 23:59:59-23:59"),
        codes=REFUSED,
        words=(b"T", b"Z", b"+", b"-", b":", b".", b"00", b"99", b"9999", "٣".encode()),
        executions=15_000,
    ),
    Target(
        name="names",
        decode=names,
        seeds=lambda: _texts(*_NAMES),
        codes=REFUSED,
        words=(b"i", b"n", b"k", b"v", b"a", b"h", b"r", b"x", b"/", b"-", b"\xcc\x81" * 300, b"0" * 36),
        executions=15_000,
    ),
    Target(name="key-object", json=True, decode=key_object, seeds=_key_objects, codes=REFUSED, bytes_per_byte=800),
    Target(
        name="settings",
        decode=settings,
        seeds=lambda: _texts("PAGE_LIMIT=7\nSHARD_DEAD_SHARE_MAX=0.5", "KEY_WAIT_MS=0\nSYNC_RECORDS= 9 "),
        codes=REFUSED,
        words=(b"inf", b"nan", b"1e400", b"1_0", b"9" * 5_000, b"=", b"-0", "٣".encode(), b"0x10"),
    ),
    Target(
        name="embedded-text",
        decode=embedded_text,
        seeds=lambda: _texts(*_TEXTS),
        executions=2_000,
        bytes_base=40_000_000,
        bytes_per_byte=3_000,
    ),
]
