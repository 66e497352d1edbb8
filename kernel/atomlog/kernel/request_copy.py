"""A caller's mapping as plain JSON values, within absolute caps, before anything of it is understood.

Callers in Python pass tuples, numbers of other libraries, arrays of numbers (anything with `tolist`), ids as 16 raw
bytes or UUIDs. All of it becomes dict, list, str, int, float, bool and None here, in one walk that also finds what
canonical JSON cannot hold.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final
from uuid import UUID

from atomlog.kernel.bounds import ID_BYTES, REQUEST_BYTES_MAX, REQUEST_DEPTH_MAX, REQUEST_VALUES_MAX
from atomlog.kernel.findings import REFUSED, ROOT, Findings, detail, member_path, one_error
from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import number_flaw

# Where a value stands: the container's place and the key or index inside it; None = the request itself.
_Place = tuple[Any, str | int] | None

_TYPE_HINTS: Final[Mapping[type, str]] = {
    bytes: "; an id has 16 raw bytes, other bytes go as text, e.g. hexadecimal",
    date: "; write a time as RFC 3339 text with an offset",
    set: "; write a list",
}


def plain_copy(raw: object, findings: Findings) -> Any:
    """`raw` in JSON's own types; a part that cannot be JSON is added to `findings` and stands as REFUSED.

    Raises:
        BOUND_EXCEEDED: text beyond REQUEST_BYTES_MAX bytes, more than REQUEST_VALUES_MAX values, or deeper than
            REQUEST_DEPTH_MAX; as soon as it is seen.
    """
    return _Copier(findings).copy(raw, None, REQUEST_DEPTH_MAX, raw_ids=True)


class _Copier:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._text_bytes = 0
        self._values = 0

    def copy(self, value: Any, place: _Place, depth: int, *, raw_ids: bool) -> Any:
        """`raw_ids`: 16 bytes and UUIDs stand for ids here, as they do everywhere but inside a `value`."""
        kind = type(value)
        if kind is str:
            return self._text(value, place)
        if value is None or kind is bool:
            return value
        if kind is int or kind is float:
            return self._number(value, place)
        if kind is dict:
            return self._object(value, place, depth, raw_ids)
        if kind is list or kind is tuple:
            return self._list(value, place, depth, raw_ids)
        return self._unusual(value, place, depth, raw_ids)

    def _text(self, value: str, place: _Place) -> Any:
        self._text_bytes += len(value)
        if not value.isascii():
            try:
                self._text_bytes += len(value.encode()) - len(value)
            except UnicodeEncodeError as error:
                return self._refuse(place, f"a lone surrogate at character {error.start}; write whole characters")
        if self._text_bytes > REQUEST_BYTES_MAX:
            self._beyond(place, "the texts of the request have more bytes", self._text_bytes, REQUEST_BYTES_MAX)
        return value

    def _number(self, value: float, place: _Place) -> Any:
        flaw = number_flaw(value)
        return value if flaw is None else self._refuse(place, flaw)

    def _object(self, value: Mapping[Any, Any], place: _Place, depth: int, raw_ids: bool) -> dict[str, Any]:
        self._enter(value, place, depth)
        copied: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self._refuse(place, f"a key is {type(key).__name__}, not text")
                continue
            inside = (place, str.__str__(key))
            name = self._text(inside[1], inside)
            found = self.copy(item, inside, depth - 1, raw_ids=raw_ids and key != "value")
            if name is not REFUSED:
                copied[name] = found
        return copied

    def _list(self, value: Sequence[Any], place: _Place, depth: int, raw_ids: bool) -> list[Any]:
        self._enter(value, place, depth)
        return [self.copy(item, (place, n), depth - 1, raw_ids=raw_ids) for n, item in enumerate(value)]

    def _unusual(self, value: Any, place: _Place, depth: int, raw_ids: bool) -> Any:
        """A value that is not exactly of one of JSON's own types."""
        if isinstance(value, str):
            return self._text(str.__str__(value), place)
        if isinstance(value, int):
            return self._number(int(value), place)
        if isinstance(value, float):
            return self._number(float(value), place)
        if isinstance(value, Mapping):
            return self._object(value, place, depth, raw_ids)
        if raw_ids and isinstance(value, bytes) and len(value) == ID_BYTES:
            return format_id(value)
        if raw_ids and isinstance(value, UUID):
            return str(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._refuse(place, f"{type(value).__name__} is no JSON type{_TYPE_HINTS[bytes]}")
        if callable(getattr(value, "tolist", None)) and depth > 0:
            self._count(getattr(value, "size", 1), place)  # before its numbers become objects
            return self.copy(value.tolist(), place, depth - 1, raw_ids=raw_ids)
        if isinstance(value, Sequence):
            return self._list(value, place, depth, raw_ids)
        hints = [hint for known, hint in _TYPE_HINTS.items() if isinstance(value, known)]
        return self._refuse(place, f"{type(value).__name__} is no JSON type{''.join(hints)}")

    def _enter(self, container: Mapping[Any, Any] | Sequence[Any], place: _Place, depth: int) -> None:
        if depth <= 0:
            self._beyond(place, "nested too deep", None, REQUEST_DEPTH_MAX)
        self._values += len(container)
        self._count(0, place)

    def _count(self, more: object, place: _Place) -> None:
        values = self._values + (more if isinstance(more, int) else 0)
        if values > REQUEST_VALUES_MAX:
            self._beyond(place, "the request has more values", values, REQUEST_VALUES_MAX)

    def _refuse(self, place: _Place, message: str) -> Any:
        self._findings.add(_path(place), message)
        return REFUSED

    def _beyond(self, place: _Place, what: str, found: int | None, limit: int) -> None:
        path = _path(place)
        message = f"{what} (limit {limit})"
        raise one_error([detail(path, "BOUND_EXCEEDED", message, found=found, limit=limit)])


def _path(place: _Place) -> str:
    steps: list[str | int] = []
    while place is not None:
        place, step = place
        steps.append(step)
    path = ""
    for step in reversed(steps):
        path = f"{path}[{step}]" if isinstance(step, int) else member_path(path, step)
    return path or ROOT
