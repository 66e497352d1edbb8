"""The text of a value: what spans address, what a search embeds, and where a long one goes.

A value's text is the value itself when it is text, else its `text` member. A text that is too long for a value
stands in the blob store, and the value has a reference in place of `text`: `{"blob": {address, sha256, bytes}, …}`.
A value that was all text becomes `{"blob": {…, "plain": true}}`. A caller may not write a member `blob`.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.ids import invalid

SEARCH_CHARACTERS_MAX: Final = 1024 * 1024  # of what is embedded: a bound on work, and a blob may have 64 MiB
_MOVED_CHARACTERS_MIN: Final = 256  # a shorter text takes hardly more room than the reference to it
_ESCAPED_BYTES_MAX: Final = 6  # of one character in JSON
_BLOB: Final = "blob"
_TEXT: Final = "text"
_PLAIN: Final = "plain"
_COLLECTION_PARTS: Final = ("title", "description", _TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """`address`: SHA-256 of the stored bytes. `sha256`, `size_bytes`: of the text in UTF-8, as it was given."""

    address: bytes
    sha256: bytes
    size_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {"address": self.address.hex(), "sha256": self.sha256.hex(), "bytes": self.size_bytes}


def text_of(value: Any) -> str | None:
    """The text that origins and quotes of this value address; None when it has none (or it is in a blob)."""
    if isinstance(value, Mapping):
        value = value.get(_TEXT)
    return value if isinstance(value, str) else None


def search_text(schema: str, value: Any) -> str | None:
    """What a search by natural language compares; None when there is nothing to embed.

    The text of a value; of a collection its title, description and text; of another value, e.g. of a relation, all
    text inside it in the order of its canonical form. At most `SEARCH_CHARACTERS_MAX` characters.
    """
    if schema == "collection" and isinstance(value, Mapping):
        parts: Iterator[str] = (part for name in _COLLECTION_PARTS if isinstance(part := value.get(name), str))
        found = _joined(parts)
        if found is not None:
            return found
    text = text_of(value)
    return _joined(iter((text,)) if text is not None else _leaves(value))


def nfc_bytes(text: str) -> bytes:
    """The bytes that spans count: UTF-8 of the text in NFC."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text.encode()
    return unicodedata.normalize("NFC", text).encode()


def check_span(text: bytes, start: int, end: int) -> str | None:
    """What is wrong with the half-open range [start, end) of bytes of NFC text; None when nothing."""
    if not 0 <= start < end <= len(text):
        return f"[{start}, {end}) is no range inside the {len(text)} bytes of the text"
    for name, at in (("start", start), ("end", end)):
        if at < len(text) and text[at] & 0xC0 == 0x80:
            return f"{name} {at} is inside a character"
    return None


def slice_bytes(text: bytes, start: int, end: int, path: str = "origin") -> bytes:
    """The bytes of a span of NFC text; INVALID_INPUT naming `path` when it is none."""
    problem = check_span(text, start, end)
    if problem is not None:
        raise invalid(path, problem)
    return text[start:end]


def long_text(value: Any, bytes_max: int) -> str | None:
    """The text that has to go to the blob store: that of a value whose canonical JSON is longer than `bytes_max`."""
    text = text_of(value)
    if text is None or len(text) < _MOVED_CHARACTERS_MIN:
        return None
    alone = isinstance(value, str) or len(value) == 1
    if alone and _ESCAPED_BYTES_MAX * len(text) + len('{"text":""}') <= bytes_max:
        return None
    return text if len(jsontext.canonical(value)) > bytes_max else None


def refuse_blob(value: Any, path: str) -> None:
    """INVALID_INPUT when a caller's value has the member that is the store's own."""
    if isinstance(value, Mapping) and _BLOB in value:
        raise invalid(f"{path}.{_BLOB}", 'the member "blob" is the store\'s own; give a long text as "text"')


def with_blob(value: Any, blob: BlobRef) -> dict[str, Any]:
    """The value with a reference in place of its text."""
    if isinstance(value, str):
        return {_BLOB: {**blob.to_dict(), _PLAIN: True}}
    if not isinstance(value, Mapping) or not isinstance(value.get(_TEXT), str) or _BLOB in value:
        raise ValueError("the value has no text that could be moved")
    rest = {name: member for name, member in value.items() if name != _TEXT}
    return _ordered({**rest, _BLOB: blob.to_dict()})


def without_blob(value: Mapping[str, Any], text: str) -> Any:
    """The value as it was before `with_blob`, members in canonical order."""
    if _PLAIN in value[_BLOB]:
        return text
    rest = {name: member for name, member in value.items() if name != _BLOB}
    return _ordered({**rest, _TEXT: text})


def blob_of(value: Any) -> BlobRef | None:
    """The reference in a stored value, None when it has none; ValueError when it is not as `with_blob` writes it."""
    if not isinstance(value, Mapping) or _BLOB not in value:
        return None
    reference = value[_BLOB]
    if not isinstance(reference, Mapping) or _TEXT in value:
        raise ValueError("the blob reference is no object, or stands beside a text")
    size = reference.get("bytes")
    if not isinstance(size, int) or size < 0:
        raise ValueError("the size in the blob reference is none")
    address, sha256 = _digest(reference.get("address")), _digest(reference.get("sha256"))
    blob = BlobRef(address=address, sha256=sha256, size_bytes=size)
    plain = {_PLAIN: True} if len(value) == 1 and _PLAIN in reference else {}
    if reference != {**blob.to_dict(), **plain}:
        raise ValueError("the blob reference is not as the store writes it")
    return blob


def _digest(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) != 64:
        raise ValueError("a digest in the blob reference is not 64 hexadecimal digits")
    return bytes.fromhex(text)


def _ordered(value: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(value.items(), key=lambda member: member[0].encode()))


def _joined(parts: Iterator[str]) -> str | None:
    """Parts that say something, a line each, cut at the limit."""
    lines: list[str] = []
    left = SEARCH_CHARACTERS_MAX
    for part in parts:
        line = part[:left].strip()
        if line:
            lines.append(line)
            left -= len(line) + 1
        if left <= 0:
            break
    return "\n".join(lines)[:SEARCH_CHARACTERS_MAX] if lines else None


def _leaves(value: Any) -> Iterator[str]:
    """Every text inside a value, members in canonical order; not a blob reference."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str.encode):
            if name != _BLOB:
                yield from _leaves(value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
