"""Content profiles: what an atom of a schema must have, as data. A new topic needs a name, not a change here.

Also decided here: the kind of provenance, from the schema and the principal's rights, never from what the caller
says alone.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from atomlog.kernel.errors import Detail
from atomlog.kernel.findings import detail, suggestion
from atomlog.kernel.ids import invalid

KINDS: Final = ("source", "extract", "generated", "imported")
MARK_SOURCE: Final = "mark-source"
RIGHTS: Final = frozenset({"read", "write", MARK_SOURCE, "purge", "admin"})

MEMBERS_A_MANIFEST: Final = 64
_ANSWERS_MAX: Final = 1_024  # of one process: schemas in use times kinds asked for
# They say how a statement is meant, not what it relates.
QUALIFIERS: Final = frozenset({"condition", "negated", "speaker", "about_time", "context"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRule:
    """How often a role stands among the slots, and in which form. None = as often as one likes."""

    role: str
    times_min: int = 0
    times_max: int | None = None
    refer: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What an atom of one schema must have.

    `kinds`: kinds of provenance that it may have; `kind`: the one it has when none is asked for (None = by rights).
    `text_in`: members of an object value of which one at least is text; a value that is text itself will do.
    `related_min`: slots at least that are no qualifiers. `not_in_value`, `not_in_slots`: what stands elsewhere.
    """

    schema: str
    kinds: tuple[str, ...] = KINDS
    kind: str | None = None
    text_in: tuple[str, ...] = ()
    slots: tuple[SlotRule, ...] = ()
    related_min: int = 0
    origins_min: int = 0
    not_in_value: tuple[str, ...] = ()
    not_in_slots: tuple[str, ...] = ()


PROFILES: Final[Mapping[str, Profile]] = {
    profile.schema: profile
    for profile in (
        Profile(schema="source", kinds=("source", "imported"), kind="source", text_in=("text",)),
        Profile(schema="extract", kinds=("extract", "generated", "imported"), kind="extract", origins_min=1),
        Profile(
            schema="collection",
            text_in=("title", "description", "text"),
            not_in_value=("members", "member"),
            not_in_slots=("member",),
        ),
        Profile(
            schema="membership",
            slots=(
                SlotRule(role="group", times_min=1, times_max=1, refer=True),
                SlotRule(role="member", times_min=1, times_max=1, refer=True),
            ),
        ),
        Profile(schema="statement", related_min=2),
        Profile(schema="summary", kinds=("generated",), kind="generated"),
        Profile(schema="hypothesis", kinds=("generated",), kind="generated"),
        Profile(
            schema="manifest",
            slots=(
                SlotRule(role="member", times_max=MEMBERS_A_MANIFEST, pinned=True),
                SlotRule(role="next", times_max=1),
            ),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCase:
    """The parts of a change that a profile speaks of, carried over from the head where they were left out.

    `slots` = (role, include, pinned) of each; `kind` = the kind of provenance that is asked for, if any.
    """

    path: str
    schema: str
    value: Any
    slots: Sequence[tuple[str, bool, bool]]
    origins: int
    receipts: int
    kind: str | None


def check_profile(case: ProfileCase, *, rights: Container[str], strict: bool) -> tuple[str, list[Detail]]:
    """The kind of provenance that the atom gets, and everything that keeps it from being what its schema says.

    A schema without a profile has only the rules of its provenance, unless `strict`.
    """
    kind, refusal = _provenance(case.schema, case.kind, MARK_SOURCE in rights)
    profile = PROFILES.get(case.schema)
    found = [] if refusal is None else [(".provenance.kind", refusal)]
    if profile is not None:
        found += _value_failures(profile, case)
        if profile.slots or profile.related_min or case.slots:
            found += _slot_failures(profile, case)
    elif strict:
        found.append((".schema", f"{case.schema} has no profile, and this space takes no other; {_known(case.schema)}"))
    found += _support_failures(profile, case, kind)
    return kind, [detail(f"{case.path}{part}", "INVALID_INPUT", message) for part, message in found]


def resolve_provenance(schema: str, requested: str | None, rights: Container[str]) -> str:
    """The kind of provenance of an atom of this schema; INVALID_INPUT naming the right kind for one that is not."""
    kind, refusal = _provenance(schema, requested, MARK_SOURCE in rights)
    if refusal is not None:
        raise invalid("provenance.kind", refusal)
    return kind


@lru_cache(maxsize=_ANSWERS_MAX)
def _provenance(schema: str, requested: str | None, may_mark: bool) -> tuple[str, str | None]:
    """(kind, None), or (the kind that is right, why the requested one is not)."""
    profile = PROFILES.get(schema)
    kinds = KINDS if profile is None else profile.kinds
    allowed = [kind for kind in kinds if kind not in ("source", "imported") or may_mark]
    default = profile.kind if profile is not None and profile.kind in allowed else None
    right = default or next((kind for kind in ("source", "generated") if kind in allowed), "generated")
    wanted = requested or (profile.kind if profile is not None else None) or right
    if wanted in allowed:
        return wanted, None
    if wanted in kinds:
        return right, f"{wanted} needs the right {MARK_SOURCE}; the kind that is right is {right}"
    return right, f"an atom of schema {schema} is not {wanted}; the kind that is right is {right}"


def _value_failures(profile: Profile, case: ProfileCase) -> Iterator[tuple[str, str]]:
    value = case.value
    members: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    has_text = isinstance(value, str)
    for name in profile.text_in:
        has_text = has_text or isinstance(members.get(name), str)
    if profile.text_in and not has_text:
        shape = " or ".join(f'{{"{name}": TEXT}}' for name in profile.text_in)
        yield ".value", f"a {profile.schema} is a text, or an object with one: {shape}"
    for name in profile.not_in_value:
        if name in members:
            yield f".value.{name}", f"a {profile.schema} holds no list of {name}; each is an atom of schema membership"


def _slot_failures(profile: Profile, case: ProfileCase) -> Iterator[tuple[str, str]]:
    for rule in profile.slots:
        found = [(n, include, pinned) for n, (role, include, pinned) in enumerate(case.slots) if role == rule.role]
        most = len(found) if rule.times_max is None else rule.times_max
        if not rule.times_min <= len(found) <= most:
            times = f"exactly {most}" if rule.times_min == most else f"{rule.times_min} to {most}"
            yield ".slots", f"a {profile.schema} has {times} slots with role {rule.role}, this one has {len(found)}"
        for n, include, pinned in found:
            if rule.refer and include:
                yield f".slots[{n}].mode", f'the {rule.role} of a {profile.schema} is referred to: "mode": "refer"'
            if rule.pinned and not pinned:
                yield f".slots[{n}].revision", f"the {rule.role} of a {profile.schema} is pinned to a revision"
    for n, (role, _, _) in enumerate(case.slots):
        if role in profile.not_in_slots:
            yield f".slots[{n}].role", f"a {profile.schema} has no slot {role}; each is an atom of schema membership"
    related = sum(role not in QUALIFIERS for role, _, _ in case.slots)
    if related < profile.related_min:
        wanted = f"{profile.related_min} slots that say what it relates, e.g. subject and object"
        yield ".slots", f"a {profile.schema} has at least {wanted}; this one has {related}"


def _support_failures(profile: Profile | None, case: ProfileCase, kind: str) -> Iterator[tuple[str, str]]:
    """What an atom rests on: an extract on a source's text, a generated one on what was read for it."""
    wanted = 0 if profile is None else profile.origins_min
    if case.origins < max(wanted, kind == "extract"):
        yield ".origins", "an extract has at least one origin, the text that it was taken from"
    if kind == "generated" and case.receipts == 0:
        yield ".provenance.receipts", "what is generated names at least one receipt of what was read for it"


def _known(schema: str) -> str:
    return suggestion(schema, PROFILES)
