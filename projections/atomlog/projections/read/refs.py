"""Id arguments of a read: what a batch may write for an atom (but no alias), or 16 raw bytes from Python."""

from dataclasses import dataclass
from typing import Final

from atomlog.kernel.ids import format_id, invalid
from atomlog.kernel.model import Handle
from atomlog.kernel.references import parse_atom_id

AtomRef = bytes | Handle
"""A raw atom id, or a receipt's row that is looked up when the read begins."""

DEFAULT_SPACE: Final = "default"
KEY_PREFIX: Final = "key:"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHome:
    """Where `key:TEXT` is computed: a space, and the policy, which is named like the space unless given."""

    space: str = DEFAULT_SPACE
    policy: str | None = None


DEFAULT_HOME: Final = KeyHome()


def parse_ref(value: object, path: str, home: KeyHome = DEFAULT_HOME) -> AtomRef:
    """The atom an argument names; INVALID_INPUT naming `path` when it names none."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _raw(bytes(value), path)
    if home.policy is not None:
        value = _with_policy(value, home)
    return parse_atom_id(value, path, space=home.space)


def format_ref(ref: AtomRef) -> str:
    return f"{format_id(ref.receipt)}#{ref.handle}" if isinstance(ref, Handle) else format_id(ref)


def raw_id(ref: AtomRef) -> bytes:
    """The id, once receipts' rows have been looked up."""
    assert isinstance(ref, bytes), "a receipt's row was not looked up"
    return ref


def _raw(value: bytes, path: str) -> bytes:
    if len(value) != 16 or not any(value):
        raise invalid(path, f"{len(value)} bytes are no id; an id has 16, not all zero")
    return value


def _with_policy(value: object, home: KeyHome) -> object:
    """The policy of the home belongs to its space: a key that names another space or policy keeps its own."""
    if isinstance(value, str) and value.startswith(KEY_PREFIX):
        value = {"key": value.removeprefix(KEY_PREFIX)}
    if isinstance(value, dict) and value.get("space") is None and value.get("policy") is None:
        return {**value, "policy": home.policy}
    return value
