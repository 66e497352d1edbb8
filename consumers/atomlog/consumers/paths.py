"""Paths that callers give: in a form that every library behind the store can take."""

from pathlib import PurePath
from typing import Final

from atomlog.kernel.ids import invalid, shown

NAME_BYTES_MAX: Final = 255  # of one name in a path, as file systems have it
PATH_BYTES_MAX: Final = 3_500  # of a whole one; a store makes longer ones below it, and the system takes 4,095


def checked_path(path: object, name: str) -> str:
    """A path as text. INVALID_INPUT naming `name` for one that the system, SQLite or RocksDB could not take."""
    text = str(path) if isinstance(path, PurePath) else path
    if not isinstance(text, str) or not text:
        raise invalid(name, f"{shown(path)} is no path")
    if "\0" in text:
        raise invalid(name, f"{shown(text)}: a path cannot hold NUL")
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise invalid(name, f"{shown(text)}: a path must be UTF-8") from None
    if len(raw) > PATH_BYTES_MAX or any(len(part) > NAME_BYTES_MAX for part in raw.split(b"/")):
        raise invalid(
            name, f"{shown(text)}: a path has at most {PATH_BYTES_MAX} bytes, each name in it {NAME_BYTES_MAX}"
        )
    return text
