"""JSON in and out: strict parsing of what comes from outside, and one canonical form.

Canonical JSON is RFC 8785 with two pinned differences: keys are sorted by their UTF-8 bytes, and integers are
exact within ±(2^63 − 1) and refused beyond. −0 is 0 and 1.0 is 1. NaN, infinities, lone surrogates and
duplicate keys are refused.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson

from atomlog.kernel.bounds import INTEGER_MAX, REQUEST_BYTES_MAX, REQUEST_DEPTH_MAX, REQUEST_VALUES_MAX
from atomlog.kernel.errors import AtomlogError, Detail
from atomlog.kernel.findings import ROOT, detail, member_path, one_error
from atomlog.kernel.ids import invalid, shown

_CHARACTER_BYTES_MAX: Final = 4
_DIGITS_MAX: Final = 400  # of a number's text; a longer one is no double


def parse_json(raw: bytes | str, path: str = ROOT, *, bytes_max: int = REQUEST_BYTES_MAX, checked: bool = True) -> Any:
    """The value of strict JSON text. Parts are named from `path`; from the root `$` without it: `changes[3].op`.

    `checked=False` leaves what canonical JSON cannot hold (NaN, lone surrogates, …) for a later `check_json`.

    Raises:
        BOUND_EXCEEDED: a text beyond `bytes_max`, or nested deeper than 64.
        INVALID_INPUT: anything else that is no JSON or that canonical JSON cannot hold, duplicate keys included.
    """
    size = len(raw)
    if size > bytes_max:
        raise _beyond(path, f"{size} bytes of JSON are more than {bytes_max}", size, bytes_max)
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
    except UnicodeDecodeError as error:
        raise invalid(path, f"not UTF-8 at byte {error.start}") from None
    try:
        value = _DECODER.decode(text)
    except _Refused as error:
        raise invalid(path, str(error)) from None
    except json.JSONDecodeError as error:
        raise invalid(path, f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _beyond(path, f"nested deeper than {REQUEST_DEPTH_MAX}", None, REQUEST_DEPTH_MAX) from None
    if checked:
        check_json(value, path, depth_max=REQUEST_DEPTH_MAX)
    return value


def loads(raw: bytes | str) -> Any:
    """Parse JSON that we wrote ourselves."""
    return orjson.loads(raw)


def dumps(value: Any) -> bytes:
    """JSON for people and pipes: keys in the order given, one line."""
    return orjson.dumps(value)


def fragment(raw: bytes) -> Any:
    """JSON that is written already, to stand inside a value for `dumps`."""
    return orjson.Fragment(raw)


def check_json(value: Any, path: str, *, depth_max: int) -> None:
    """Refuse what canonical JSON cannot hold: INVALID_INPUT or, nested too deep, BOUND_EXCEEDED; names every part."""
    _checked(value, path, depth_max)


def canonical(value: Any, path: str = "value", *, depth_max: int = REQUEST_DEPTH_MAX) -> bytes:
    """The canonical bytes of a value; INVALID_INPUT naming every part that cannot be written."""
    traits = _checked(value, path, depth_max)
    if traits & _UNUSUAL:
        value = _plain(value)
    if traits & _RENDERED:
        return _render(value).encode()
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def simple_copy(value: Any) -> tuple[Any, int] | None:
    """A copy of a value that is simple JSON through and through, and how many levels it has. None for any other.

    Simple: dict, list, str, int, bool, None and floats of those very types, and no number whose canonical form is
    another than the fast writer's. Within the absolute caps of a request, so that copying it is bounded.
    """
    tally = _Tally()
    try:
        levels = tally.levels_of(value, REQUEST_DEPTH_MAX)
        return orjson.loads(orjson.dumps(value)), levels
    except (_Flawed, orjson.JSONEncodeError):
        return None


def simple_json(value: Any) -> bytes:
    """Canonical JSON of what `simple_copy` gave, or of a part of it."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


class _Tally:
    """What a value has of values and characters so far; _Flawed when it has too many, or is not simple."""

    def __init__(self) -> None:
        self._values = 0
        self._characters = 0

    def levels_of(self, container: Any, levels_max: int) -> int:
        self._values += len(container)
        if levels_max <= 0 or self._values > REQUEST_VALUES_MAX:
            raise _Flawed
        deepest = characters = 0
        items = container
        if type(container) is dict:
            items = container.values()
            for key in container:
                if type(key) is not str:
                    raise _Flawed
                characters += len(key)
        for item in items:
            kind = type(item)
            if kind is str:
                characters += len(item)
            elif kind is dict or kind is list:
                deepest = max(deepest, self.levels_of(item, levels_max - 1))
            elif item is not None and kind is not bool and not _is_simple_number(item, kind):
                raise _Flawed
        self._characters += characters
        if self._characters > REQUEST_BYTES_MAX // _CHARACTER_BYTES_MAX:
            raise _Flawed
        return deepest + 1


def _is_simple_number(value: float, kind: type) -> bool:
    if kind is int:
        return -INTEGER_MAX <= value <= INTEGER_MAX
    size = abs(float(value)) if kind is float else 0.0
    return 1e-5 <= size < 1e16 and not size.is_integer()


def flaws(value: Any, path: str, *, depth_max: int) -> Iterator[Detail]:
    """Every part that canonical JSON cannot hold, as entries of an error's details."""
    if isinstance(value, str):
        yield from _text_flaws(value, path)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        flaw = number_flaw(value)
        if flaw is not None:
            yield detail(path, "INVALID_INPUT", flaw)
    elif not isinstance(value, Mapping | Sequence) or isinstance(value, _BYTES_LIKE):
        yield detail(path, "INVALID_INPUT", f"{type(value).__name__} is no JSON type")
    elif depth_max <= 0:
        yield detail(path, "BOUND_EXCEEDED", "nested too deep")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield detail(path, "INVALID_INPUT", f"a key is {type(key).__name__}, not text")
                continue
            where = member_path(path, key)
            yield from _text_flaws(key, where)
            yield from flaws(item, where, depth_max=depth_max - 1)
    else:
        for index, item in enumerate(value):
            yield from flaws(item, f"{path}[{index}]", depth_max=depth_max - 1)


def number_flaw(value: float) -> str | None:
    """Why an int or a float cannot stand in canonical JSON; None when it can."""
    if isinstance(value, int):
        return None if -INTEGER_MAX <= value <= INTEGER_MAX else _TOO_BIG
    if not math.isfinite(value):
        return f"{float(value)} is no JSON number; leave it out or write null"
    return _TOO_BIG if value.is_integer() and INTEGER_MAX < abs(value) < 1e21 else None


_TOO_BIG: Final = "an integer beyond ±(2^63 − 1); write it as text"
_FLAWS_MAX: Final = 1_000  # named in one error
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


def _text_flaws(text: str, path: str) -> Iterator[Detail]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"a lone surrogate at character {error.start}; write whole characters"
        yield detail(path, "INVALID_INPUT", message)


# What `_survey` tells: `canonical` may hand the value to the fast writer unless one of these is inside.
_UNUSUAL: Final = 1  # a float that is an integer, or a type that is not exactly JSON's own
_RENDERED: Final = 2  # a float that the fast writer would write with another exponent


class _Flawed(Exception):
    pass


def _checked(value: Any, path: str, depth_max: int) -> int:
    try:
        return _survey(value, depth_max)
    except (_Flawed, UnicodeEncodeError):
        found = list(islice(flaws(value, path, depth_max=depth_max), _FLAWS_MAX))
    raise one_error(found)


def _survey(value: Any, depth: int) -> int:
    """The traits of a value; _Flawed or UnicodeEncodeError exactly when `flaws` finds any."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            value.encode()
        return 0
    if value is None or kind is bool:
        return 0
    if kind is int:
        if -INTEGER_MAX <= value <= INTEGER_MAX:
            return 0
        raise _Flawed
    if kind is float:
        return _float_traits(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return _UNUSUAL | _survey(_usual(value), depth)
    if depth <= 0:
        raise _Flawed
    traits = 0
    if kind is not dict:
        for item in value:
            traits |= _survey(item, depth - 1)
        return traits
    for key, item in value.items():
        if type(key) is not str:
            if not isinstance(key, str):
                raise _Flawed
            key, traits = _usual(key), traits | _UNUSUAL
        if not key.isascii():
            key.encode()
        traits |= _survey(item, depth - 1)
    return traits


def _usual(value: Any) -> Any:
    """A value of another type as the JSON type it stands for, one level deep."""
    if isinstance(value, str):
        return str.__str__(value)  # what a subclass (an enumeration) holds, not how it wants to be shown
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, _BYTES_LIKE):
        return list(value)
    raise _Flawed


def _float_traits(value: float) -> int:
    if number_flaw(value) is not None:
        raise _Flawed
    size = abs(value)
    if size < 1e21 and value.is_integer():
        return _UNUSUAL
    return 0 if 1e-5 <= size < 1e16 else _RENDERED


def _plain(value: Any) -> Any:
    """The same in JSON's own types, 1.0 as 1 and −0.0 as 0 everywhere inside."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, Mapping):
        return {_usual(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return _usual(value)


def _render(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda pair: pair[0].encode())
        return "{" + ",".join(f"{orjson.dumps(key).decode()}:{_render(item)}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_render, value)) + "]"
    return orjson.dumps(value).decode()


def _number(value: float) -> str:
    """ECMAScript's Number::toString of a finite double that is no integer below 10^21."""
    sign = "-" if value < 0 else ""
    mantissa, _, exponent_text = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent_text or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return f"{sign}{digits}{'0' * (point - count)}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power >= 0 else '-'}{abs(power)}"


def _beyond(path: str, message: str, found: int | None, limit: int) -> AtomlogError:
    return one_error([detail(path, "BOUND_EXCEEDED", message, found=found, limit=limit)])


class _Refused(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"the key {shown(key)} stands twice in one object")
            seen.add(key)
    return found


def _integer(text: str) -> int:
    return int(text) if len(text) <= 20 else INTEGER_MAX + 1  # too long: out of range, as `check_json` will say


def _float(text: str) -> float:
    return float(text) if len(text) <= _DIGITS_MAX else math.inf


# NaN, infinities and numbers out of range are let through here: `check_json` names the part that holds them.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=float, parse_int=_integer, parse_float=_float
)
