"""The ways to name an atom: UUID text, `key:TEXT`, `{"key", "space", "policy"}`, `@alias`, `RECEIPT#a1`.

A key is computed, never looked up. An alias means something inside one batch only.
"""

import re
from collections.abc import Collection
from typing import Any, Final

from atomlog.kernel.findings import Findings, suggestion
from atomlog.kernel.ids import invalid, keyed_id, parse_id, parse_key, parse_name, shown
from atomlog.kernel.model import Alias, AtomRef, Handle, RevisionRef

ALIAS_CHARACTERS_MAX: Final = 64
UUID_CHARACTERS: Final = 36
_ALIAS: Final = re.compile(r"@[^\s@#\x00-\x1f\x7f-\x9f]{1,64}")
_HANDLE: Final = re.compile(r"a[1-9][0-9]{0,8}")
_KEY_PREFIX: Final = "key:"
_KEY_FIELDS: Final = ("key", "space", "policy")
_WAYS: Final = 'write a UUID, "key:TEXT", {"key": TEXT, "space": …, "policy": …}, RECEIPT#a1 or, in a batch, @alias'


def parse_alias(raw: Any, path: str) -> str:
    """An alias with its `@`; INVALID_INPUT otherwise."""
    if not isinstance(raw, str) or not _ALIAS.fullmatch(raw):
        characters = f"1 to {ALIAS_CHARACTERS_MAX} characters without space, @ and #"
        raise invalid(path, f"{shown(raw)} is no alias; write @ and then {characters}")
    return raw


def parse_atom_id(raw: Any, path: str, *, space: str) -> bytes | Handle:
    """An atom named outside of a batch: an id, a key of `space` (or of the one it names) or a receipt's row."""
    if isinstance(raw, str) and raw.startswith("@"):
        raise invalid(path, f"{shown(raw)} is an alias, which means something inside a batch only; {_WAYS}")
    ref = parse_atom_ref(raw, path, space=space, aliases=())
    assert not isinstance(ref, Alias)
    return ref


def parse_atom_ref(raw: Any, path: str, *, space: str, aliases: Collection[str]) -> AtomRef:
    """An atom named inside a batch of `space` that gives these aliases. INVALID_INPUT otherwise."""
    if isinstance(raw, dict):
        return _parse_key_object(raw, path, space)
    if not isinstance(raw, str) or not raw:
        raise invalid(path, f"{shown(raw)} names no atom; {_WAYS}")
    if raw.startswith("@"):
        return _known_alias(raw, path, aliases)
    if raw.startswith(_KEY_PREFIX):
        return keyed_id(space, space, parse_key(raw.removeprefix(_KEY_PREFIX), path))
    if "#" in raw:
        return parse_handle(raw, path)
    if len(raw) != UUID_CHARACTERS:  # rather a name than a mistyped id
        raise invalid(path, f"{shown(raw)} names no atom; {_WAYS}")
    return parse_id(raw, path)


def parse_revision_ref(raw: Any, path: str, *, aliases: Collection[str]) -> RevisionRef:
    """A revision: UUID text, or an alias, which stands for the revision that the batch makes."""
    if isinstance(raw, str) and raw.startswith("@"):
        return _known_alias(raw, path, aliases)
    return parse_id(raw, path)


def parse_handle(raw: str, path: str) -> Handle:
    """`RECEIPT#a1`: a row of a receipt; INVALID_INPUT otherwise."""
    receipt, _, row = raw.partition("#")
    if not _HANDLE.fullmatch(row):
        raise invalid(path, f"{shown(row)} is no row of a receipt; write RECEIPT#a1")
    return Handle(parse_id(receipt, path), row)


def named_space(raw: Any) -> str | None:
    """The space that a key object names, if it names one."""
    space = raw.get("space") if isinstance(raw, dict) else None
    return space if isinstance(space, str) else None


def _parse_key_object(raw: dict[str, Any], path: str, space: str) -> bytes:
    findings = Findings()
    findings.refuse_unknown(raw, path, _KEY_FIELDS)
    if raw.get("space") is not None:
        space = findings.take(parse_name, raw["space"], f"{path}.space", space)
    policy = space
    if raw.get("policy") is not None:
        policy = findings.take(parse_name, raw["policy"], f"{path}.policy", space)
    key = ""
    if raw.get("key") is None:
        findings.add(f"{path}.key", "is missing")
    else:
        key = findings.take(parse_key, raw["key"], f"{path}.key", "")
    if findings.details:
        raise findings.error()
    return keyed_id(space, policy, key)


def _known_alias(raw: str, path: str, aliases: Collection[str]) -> Alias:
    name = parse_alias(raw, path)
    if name not in aliases:
        raise invalid(path, f'no change of the batch has "as": {shown(name)}; {suggestion(name, aliases)}')
    return Alias(name)
