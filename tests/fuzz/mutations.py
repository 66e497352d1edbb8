"""Small changes to bytes, of the kinds that break decoders. What is drawn depends on the generator alone."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

LENGTH_MAX: Final = 32 * 1024
_SPLICED: Final = 0.1
_BYTES: Final = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xC3, 0xD8, 0xFE, 0xFF)
_WORDS: Final = (
    *(b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\x00" * 16, b"\xff" * 16),
    *(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x00", b"\x80\x80\x01"),
    *(b"\x02", b"\x01", b"\x7f", b"\xfe\x01", b"\xc0\x84\x3d", b"\x80\xa4\xe8\x03"),  # counts and lengths as varints
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9223372036854775808", b"1" * 5_000, b"0.1", b"-0"),
    *(b"[", b"{", b'{"a":', b"[" * 200, b'{"a":' * 200, b"]", b"}", b'"', b"\\ud800", b"\\u0000", b"\\"),
    *(b"\xed\xb2\x95", b"\xf0\x9f\x91\xa9\xe2\x80\x8d", b"\xe3\x81\x8b\xe3\x82\x99", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"key:", b"@a", b"#a1", b"\n", b"\r\n", b"\x00", b" ", b"../", b"%s%n", b"\xe2\x80\xae"),
)

Mutation = Callable[[Random, bytearray, Sequence[bytes]], None]


def mutated(draw: Random, raw: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """`raw` after one to five changes; `words` are pieces that mean something to the decoder."""
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        if draw.random() < _SPLICED:
            _splice(draw, changed, others)
        else:
            draw.choice(_MUTATIONS)(draw, changed, words if words and draw.random() < 0.5 else _WORDS)
        del changed[LENGTH_MAX:]
    return bytes(changed)


_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e22),
    *(5e-324, 1.7e308, float("nan"), float("inf"), "", " ", "\0", "\ud800", "\ud83d\ude00", "か\u3099", "x" * 3_000),
    *("key:", "key:a", "@a", "0192f0c1-2b3a-7c4d-8e5f-0123456789ab", "0192f0c1-2b3a-7c4d-8e5f-0123456789ab#a1"),
    *("2026-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "9999-12-31T23:59:59Z", "hashing/1/4/cosine", "\ufeff"),
    *([], {}, [None], [[]], [[[[]]]], {"": ""}, {"blob": {}}, {"text": "x"}, {"key": "a"}, ["x"] * 100),
)


def mutated_json(draw: Random, raw: bytes, others: Sequence[bytes]) -> bytes | None:
    """The JSON value in `raw` with some of its parts exchanged, doubled, moved or gone; None when it is no JSON."""
    try:
        tree = json.loads(raw)
        other = json.loads(draw.choice(others))
    except (ValueError, RecursionError):
        return None
    for _ in range(draw.choice((1, 1, 2, 3))):
        tree = _changed(draw, tree, _part(draw, other))
    try:
        return json.dumps(tree, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")[:LENGTH_MAX]
    except RecursionError:
        return None


def _changed(draw: Random, tree: Any, foreign: Any) -> Any:
    """One change, somewhere on the way down from the root."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.1:
        return deepcopy(foreign if draw.random() < 0.3 else draw.choice(_VALUES))
    places: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    place = draw.choice(places)
    chance = draw.random()
    if chance < 0.6:
        tree[place] = _changed(draw, tree[place], foreign)
    elif chance < 0.75:
        del tree[place]
    elif isinstance(tree, list):
        tree += [deepcopy(tree[place]) for _ in range(draw.choice((1, 2, 40)))]
    elif chance < 0.9:
        tree[draw.choice(places)] = deepcopy(tree[place])
    else:
        tree[draw.choice(("", "text", "blob", "value", "\ud800", "x" * 200, "1"))] = deepcopy(foreign)
    return tree


def _part(draw: Random, tree: Any) -> Any:
    while isinstance(tree, dict | list) and tree and draw.random() < 0.7:
        tree = draw.choice(list(tree.values()) if isinstance(tree, dict) else tree)
    return tree


def _place(draw: Random, raw: bytearray) -> int:
    return draw.randint(0, len(raw))


def _range(draw: Random, raw: bytearray) -> tuple[int, int]:
    start = _place(draw, raw)
    return start, min(len(raw), start + draw.choice((1, 2, 4, 8, 16, 64, draw.randint(1, max(1, len(raw))))))


def _flip(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    if raw:
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)


def _set(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    if raw:
        raw[draw.randrange(len(raw))] = draw.choice((*_BYTES, draw.randrange(256)))


def _step(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    """A number that is off by one, or by a few."""
    if raw:
        at = draw.randrange(len(raw))
        raw[at] = (raw[at] + draw.choice((-2, -1, 1, 2))) % 256


def _insert(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    at = _place(draw, raw)
    raw[at:at] = draw.choice(words)


def _overwrite(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    at = _place(draw, raw)
    word = draw.choice(words)
    raw[at : at + len(word)] = word


def _remove(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    start, stop = _range(draw, raw)
    del raw[start:stop]


def _cut(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    del raw[_place(draw, raw) :]


def _repeat(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    """A part many times over: nesting, long lists, long texts."""
    start, stop = _range(draw, raw)
    part = bytes(raw[start:stop])
    if part:
        raw[start:start] = part * min(draw.choice((1, 2, 16, 300, 2_000)), 16_384 // len(part) + 1)


def _move(draw: Random, raw: bytearray, words: Sequence[bytes]) -> None:
    start, stop = _range(draw, raw)
    part = bytes(raw[start:stop])
    del raw[start:stop]
    at = _place(draw, raw)
    raw[at:at] = part


def _splice(draw: Random, raw: bytearray, others: Sequence[bytes]) -> None:
    """The end of another input behind the beginning of this one, or a part of it inside."""
    other = bytearray(draw.choice(others))
    start, stop = _range(draw, other)
    at = _place(draw, raw)
    if draw.random() < 0.5:
        raw[at:] = other[start:]
    else:
        raw[at:at] = other[start:stop]


_MUTATIONS: Final[Sequence[Mutation]] = (*(_flip, _set, _step, _insert, _overwrite, _remove, _cut, _repeat, _move),)
