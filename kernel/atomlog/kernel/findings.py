"""Collects every failing part of a request, so that a caller sees all of them at once."""

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from atomlog.kernel.errors import AtomlogError, Detail, InvalidError, fail
from atomlog.kernel.ids import shown

DETAILS_MAX: Final = 10_000  # of one error; a request has fewer parts, unless it is nothing but errors
ROOT: Final = "$"  # the path of a request as a whole; its parts are named without it
_NAMED_MAX: Final = 20
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

T = TypeVar("T")
NO_HINTS: Final[Mapping[str, str]] = {}


class Findings:
    """The failing parts found so far, in the order found."""

    def __init__(self) -> None:
        self.details: list[Detail] = []
        self.count = 0

    def add(self, path: str, message: str, *, code: str = "INVALID_INPUT", **more: Any) -> None:
        self.count += 1
        if self.count <= DETAILS_MAX:
            self.details.append(detail(path, code, message, **more))

    def take(self, parse: Callable[[Any, str], T], value: Any, path: str, instead: T) -> T:
        """What `parse` makes of a part; its refusal is collected and `instead` stands for the part.

        A part that was refused before (`REFUSED`) is not reported twice.
        """
        if value is REFUSED:
            return instead
        try:
            return parse(value, path)
        except InvalidError as error:
            for found in error.details:
                self.add(**found)
            return instead

    def refuse_unknown(
        self, fields: Mapping[Any, Any], path: str, known: Collection[str], hints: Mapping[str, str] = NO_HINTS
    ) -> None:
        """Add each field that is not known here; `hints` has a better word for some of them."""
        for name in fields:
            if name not in known:
                self.add(member_path(path, name), hints.get(name) or f"unknown field; {suggestion(name, known)}")

    def error(self) -> AtomlogError:
        """One error that names all of them."""
        return one_error(self.details, self.count)


def one_error(details: Sequence[Detail], count: int | None = None) -> AtomlogError:
    """One error for all failing parts, under the code of the first; `count` when not all are among the details."""
    first, more = details[0], (count or len(details)) - 1
    message = f"{first['path']}: {first['message']}" + (f" (and {more} more)" if more else "")
    return fail(first["code"], message, details=details)


class _Refused:
    """Stands for a part of a request that is already among the findings."""


REFUSED: Final = _Refused()


def detail(path: str, code: str, message: str, **more: Any) -> Detail:
    """One entry of an error's `details`."""
    return {"path": path, "code": code, "message": message, **more}


def member_path(path: str, key: object) -> str:
    """The path of a member of an object: `path.key`, or `path["key"]` when the key is not a plain word, or no text."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path not in ("", ROOT) else key
    return f"{path}[{shown(key)}]"


def suggestion(word: object, known: Collection[str]) -> str:
    """`did you mean 'value'?` when one is close, else the list of what is known."""
    close = difflib.get_close_matches(word[:64], known, n=1) if isinstance(word, str) else []
    if close:
        return f"did you mean {close[0]!r}?"
    if not known:
        return "there is none"
    named = sorted(known)[:_NAMED_MAX]
    return f"known: {', '.join(named)}{', …' if len(known) > _NAMED_MAX else ''}"
