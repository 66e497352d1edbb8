"""JSON in and out: strict parsing of what comes from outside, and one canonical form.

Canonical JSON is RFC 8785 with two pinned differences: keys are sorted by their UTF-8 bytes, and integers are
exact within ±(2^63 − 1) and refused beyond. −0 is 0 and 1.0 is 1. NaN, infinities, lone surrogates and
duplicate keys are refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from atomlog.kernel.bounds import INTEGER_MAX, REQUEST_BYTES_MAX, REQUEST_DEPTH_MAX
from atomlog.kernel.ids import invalid

_DIGITS_MAX: Final = 400  # of a number's text; a longer one is no double


def parse_json(raw: bytes | str, path: str = "$", *, bytes_max: int = REQUEST_BYTES_MAX) -> Any:
    """The value of strict JSON text; INVALID_INPUT naming `path` for anything else.

    Duplicate keys, NaN and infinities, a nesting beyond 64 and a text beyond `bytes_max` are refused.
    """
    size = len(raw)
    if size > bytes_max:
        raise invalid(path, f"{size} bytes of JSON are more than {bytes_max}")
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
        raise invalid(path, f"nested deeper than {REQUEST_DEPTH_MAX}") from None
    check_json(value, path, depth_max=REQUEST_DEPTH_MAX)
    return value


def loads(raw: bytes | str) -> Any:
    """Parse JSON that we wrote ourselves."""
    return orjson.loads(raw)


def dumps(value: Any) -> bytes:
    """JSON for people and pipes: keys in the order given, one line."""
    return orjson.dumps(value)


def check_json(value: Any, path: str, *, depth_max: int) -> bool:
    """Refuse what canonical JSON cannot hold; INVALID_INPUT names the part. True when a float is inside."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise invalid(path, f"a lone surrogate at character {error.start}") from None
        return False
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise invalid(path, "an integer beyond ±(2^63 − 1); write it as text")
        return False
    if isinstance(value, float):
        if not math.isfinite(value):
            raise invalid(path, f"{value} is no JSON number")
        if value.is_integer() and INTEGER_MAX < abs(value) < 1e21:
            raise invalid(path, "an integer beyond ±(2^63 − 1); write it as text")
        return True
    if depth_max <= 0:
        raise invalid(path, "nested too deep")
    floats = False
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise invalid(path, f"a key is {type(key).__name__}, not text")
            check_json(key, f"{path}.<key>", depth_max=0)
            floats |= check_json(item, f"{path}.{key}" if len(key) <= 64 else f"{path}.<key>", depth_max=depth_max - 1)
        return floats
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for index, item in enumerate(value):
            floats |= check_json(item, f"{path}[{index}]", depth_max=depth_max - 1)
        return floats
    raise invalid(path, f"{type(value).__name__} is no JSON type")


def canonical(value: Any, path: str = "value", *, depth_max: int = REQUEST_DEPTH_MAX) -> bytes:
    """The canonical bytes of a value; INVALID_INPUT naming the part that cannot be written."""
    if check_json(value, path, depth_max=depth_max):
        value = _integral(value)
        if _has_float(value):
            return _render(value).encode()
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _integral(value: Any) -> Any:
    """1.0 as 1 and −0.0 as 0, everywhere inside."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    if isinstance(value, Mapping):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value


def _has_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_float(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_float(item) for item in value)
    return isinstance(value, float)


def _render(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda pair: pair[0].encode())
        return "{" + ",".join(f"{orjson.dumps(key).decode()}:{_render(item)}" for key, item in items) + "}"
    if isinstance(value, list):
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


class _Refused(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"the key {ascii(key)[:80]} stands twice in one object")
            seen.add(key)
    return found


def _constant(text: str) -> Any:
    raise _Refused(f"{text} is no JSON number")


def _integer(text: str) -> int:
    if len(text) > 20:
        raise _Refused("an integer beyond ±(2^63 − 1); write it as text")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= _DIGITS_MAX else math.inf
    if not math.isfinite(value):
        raise _Refused(f"the number {text[:40]} is beyond a double")
    return value


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_constant, parse_int=_integer, parse_float=_float
)
