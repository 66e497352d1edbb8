"""What must hold, one named function each. A failure names its checker, so that a planted fault can be told by it.

Each looks at a `Course`: what was sent and answered, what was read, and the log as the brute-force model replayed it.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from atomlog.kernel.ids import format_id
from atomlog.projections.base import Projection
from atomlog.projections.read.page import Page
from tests.oracle.brute_model import Accepted, Model, Version
from tests.oracle.decisions import atom_of, failures, raw_id

F = TypeVar("F", bound=Callable[..., Any])
CHECKERS: dict[str, Callable[..., Any]] = {}
ONLY: set[str] = set()  # to see what one checker finds by itself

ACCEPTED, REFUSED, NEVER, UNKNOWN, WAITING = "accepted", "refused", "never", "unknown", "waiting"
CONFLICTS = ("REVISION_CONFLICT", "PRECONDITION_FAILED", "INVALID_INPUT")


class CheckFailed(AssertionError):
    """`checker` found it: it `looked`, or the program had refused to go on where it was to look."""

    def __init__(self, checker: str, message: str, *, looked: bool = False) -> None:
        super().__init__(f"[{checker}] {message}")
        self.checker = checker
        self.looked = looked


@contextmanager
def named(checker: str) -> Iterator[None]:
    """Whatever fails inside was found by this checker, though not by its own look."""
    try:
        yield
    except CheckFailed:
        raise
    except Exception as error:
        raise CheckFailed(checker, f"{type(error).__name__}: {error}") from error


def checker(function: F) -> F:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if ONLY and function.__name__ not in ONLY:
            return None
        with named(function.__name__):
            try:
                return function(*args, **kwargs)
            except AssertionError as error:
                raise CheckFailed(function.__name__, f"{type(error).__name__}: {error}", looked=True) from error

    CHECKERS[function.__name__] = checked
    return checked  # type: ignore[return-value]


@dataclass(kw_only=True)
class Sent:
    """One sending of a batch, and what came of it. `asked_at`, `answered_at`: the log's end then."""

    number: int
    batch: Mapping[str, Any]
    asked_at: int
    state: str = WAITING
    code: str = ""
    why: str = ""
    result: Any = None
    details: Sequence[Mapping[str, Any]] = ()
    answered_at: int = -1
    answer_number: int = -1  # how many had been sent when it was answered

    @property
    def scope(self) -> tuple[str, str]:
        return self.batch["space"], self.batch["idempotency_key"]


@dataclass(kw_only=True)
class Course:
    """Everything that happened so far."""

    model: Model
    sent: list[Sent] = field(default_factory=list)
    never: dict[tuple[str, str], int] = field(default_factory=dict)  # scope → how many had been sent
    positions: dict[str, int] = field(default_factory=dict)  # who → the last position it was seen at

    def accepted(self) -> list[Sent]:
        return [one for one in self.sent if one.state == ACCEPTED]


# -- writes


@checker
def acknowledged_exactly_once(course: Course) -> None:
    """What was accepted stands in the log once, where its receipt says, with the ids that were told."""
    batches = {batch.position: batch for batch in course.model.batches}
    assert max(Counter(batch.request_key for batch in course.model.batches).values(), default=1) == 1, "a key twice"
    for one in course.accepted():
        batch = batches.get(one.result.receipt.position)
        assert batch is not None, f"{one.scope} was accepted at {one.result.receipt.position}, where no batch is"
        told = tuple(made.revision for made in one.result.results)
        assert told == batch.revisions, f"{one.scope}: the log holds other revisions than were told"


@checker
def no_half_batch(course: Course) -> None:
    """A batch of the log has every change of its request, as it was sent, and nothing else."""
    batches = {batch.position: batch for batch in course.model.batches}
    for one in course.accepted():
        batch = batches[one.result.receipt.position]
        changes = one.batch["changes"]
        assert len(batch.revisions) == len(changes), f"{one.scope}: {len(batch.revisions)} of {len(changes)} changes"
        aliases = {made.alias: made for made in one.result.results if made.alias}
        for change, made in zip(changes, one.result.results, strict=True):
            version = _version(course.model, made.atom, made.revision)
            _check_change(change, version, batch, aliases)


@checker
def every_batch_was_sent(course: Course) -> None:
    """At the end: each batch of the log is the one of a request whose sender knows it."""
    known = {one.result.receipt.position for one in course.accepted()}
    for batch in course.model.batches:
        assert batch.position in known, f"the batch at {batch.position} is nobody's"


@checker
def single_chain_per_atom(course: Course) -> None:
    """Each revision names the one before it, in the log's order, and no id is used twice."""
    seen: set[bytes] = set()
    for versions in course.model.versions.values():
        for before, version in zip([None, *versions], versions, strict=False):
            previous = None if before is None else before.revision
            assert version.previous == previous, f"{format_id(version.revision)} does not follow the one before it"
            assert version.revision not in seen, f"{format_id(version.revision)} stands twice"
            seen.add(version.revision)


@checker
def one_winner_per_head(course: Course) -> None:
    """Of those that were decided on one head, one at most was accepted; and nothing that rested on what had changed."""
    won: dict[tuple[bytes, str | None], tuple[str, str]] = {}
    for one in course.accepted():
        for change, made in zip(one.batch["changes"], one.result.results, strict=True):
            head = made.atom, change.get("expected")
            assert won.setdefault(head, one.scope) == one.scope, f"{won[head]} and {one.scope} both won {head}"
        found = failures(course.model, one.batch, 0, one.result.receipt.position - 1)
        assert not found, f"{one.scope} was accepted at {one.result.receipt.position} against {found}"


@checker
def refusals_were_right(course: Course) -> None:
    """Who was refused for what others wrote: that was so, at a position between the question and the answer."""
    for one in course.sent:
        if one.state != REFUSED or one.code == "IDEMPOTENCY_MISMATCH":
            continue
        assert one.code in CONFLICTS, f"{one.scope} was refused with {one.code}: {one.why}"
        assert one.details, f"{one.scope} was refused with {one.code} for nothing"
        told = {detail["path"].split(".")[0] for detail in one.details}
        states = [failures(course.model, one.batch, 0, at) for at in range(one.asked_at - 1, one.answered_at)]
        assert any(told == set(found) for found in states), f"{one.scope}: refused for {told}; it was {states}"
        for detail in one.details:
            if "head" in detail:
                atom, head = raw_id(detail["atom"]), detail["head"] and raw_id(detail["head"])
                heads = (course.model.head(atom, {0: at}) for at in range(one.asked_at - 1, one.answered_at))
                assert any((found.revision if found else None) == head for found in heads), f"{one.scope}: {detail}"


@checker
def same_key_same_answer(course: Course) -> None:
    """One key: one result, told as a repetition from the second time on; another body is told apart."""
    for scope, told in _by_scope(course.accepted()).items():
        assert len({one.result.receipt.position for one in told}) == 1, f"{scope} was accepted at two positions"
        assert len({repr(one.batch) for one in told}) == 1, f"{scope} was accepted with two bodies"
        assert sum(not one.result.replayed for one in told) <= 1, f"{scope} is told as new twice"
        position = told[0].result.receipt.position
        for one in course.sent:
            if one.scope == scope and one.state == REFUSED and one.asked_at > position:
                assert one.code == "IDEMPOTENCY_MISMATCH", f"{scope}, accepted before, was refused with {one.code}"
                assert one.batch != told[0].batch, f"{scope}: the same body is told as another one"


@checker
def never_is_never(course: Course) -> None:
    """What was told to have never happened is not in the log, unless it was sent again afterwards."""
    for scope, number in course.never.items():
        for one in course.accepted():
            if one.scope == scope:
                assert one.number >= number or any(
                    other.scope == scope and other.number >= number for other in course.sent
                ), f"{scope} was told as never and is accepted"


@checker
def positions_are_monotone(course: Course) -> None:
    """Later is later: times and positions of batches; who was sent after an answer stands after it."""
    times = [batch.recorded_at for batch in course.model.batches]
    assert times == sorted(set(times)), "recorded_at does not rise"
    answered = [one for one in course.accepted() if not one.result.replayed]
    for first in answered:
        for second in answered:
            if second.number >= first.answer_number:
                before, after = first.result.receipt.position, second.result.receipt.position
                assert before < after, f"{second.scope} was sent after {first.scope} was answered, and stands before it"


def stands(course: Course, who: str, position: int) -> None:
    """What an index has applied stays applied."""
    with named("positions_are_monotone"):
        before = course.positions.get(who, -1)
        assert position >= before, f"{who} stood at {before} and is at {position}"
    course.positions[who] = position


@checker
def records_tile_the_log(model: Model, end: int, read: Sequence[int], counted: int) -> None:
    """Positions 0 … end − 1, each once, whoever reads; effective and void records are all there are."""
    assert list(read) == list(range(end)), f"positions {list(read)} are not 0 … {end - 1}"
    effective, voids = len(model.effective.get(0, [])), sum(model.voids.values())
    assert effective + voids == end, f"{effective} effective and {voids} void records are not {end}"
    assert counted == voids, f"{counted} void records were counted, {voids} are there"


@checker
def everything_is_answered(waiting: Sequence[Sent]) -> None:
    """Liveness: after all faults are over, whoever asked has an answer."""
    assert not waiting, f"no answer to {[one.scope for one in waiting]}"


# -- indexes


@checker
def digest_equals_clean_rebuild(live: Projection, clean: Projection) -> None:
    assert live.checkpoint(0) == clean.checkpoint(0), f"{live.name}: other checkpoints"
    assert live.digest(0) == clean.digest(0), f"{live.name}: another digest than a clean rebuild"
    assert live.verify(0) == live.rows(0) == clean.rows(0), f"{live.name}: {live.rows(0)} rows, not {clean.rows(0)}"


@checker
def resume_equals_uninterrupted(resumed: Mapping[str, Any], uninterrupted: Mapping[str, Any]) -> None:
    """What was applied a piece at a time, with restarts between, answers every question as what was not."""
    for question, answer in uninterrupted.items():
        assert resumed[question] == answer, f"{question}: {resumed[question]} is not {answer}"


@checker
def corruption_fails_closed(
    wanted: Sequence[Any], got: Sequence[Any] | None, code: str | None, *, is_end: bool
) -> None:
    """Damage is refused, or does not matter; it is never served. An older published end shows less, and no more."""
    if got is None:
        assert code in ("CORRUPT", "LOG_MISMATCH", "STORE_TOO_NEW", "LOG_DIVERGED", "UPGRADE_REQUIRED"), code
    else:
        whole = list(wanted[: len(got)] if is_end else wanted)
        assert list(got) == whole, "other records than were written are served"


# -- reads


@checker
def reads_are_exact(model: Model, asked: Mapping[str, Any], pages: Sequence[Page], values: Mapping[bytes, Any]) -> None:
    """Rows in order, their revisions, states, values and resolved slots, as of the one position of all pages."""
    at = pages[0].receipt.observed()
    rows = [row for page in pages for row in page.atoms]
    got = [(row.atom, row.revision) for row in rows]
    assert got == expected_rows(model, asked, at), f"{asked} at {at}: {_shown(got)}"
    for row in rows:
        version = _version(model, row.atom, row.revision)
        head = model.head(row.atom, at)
        assert head is not None
        status = "superseded" if head is not version else "retired" if version.retired else "current"
        assert (row.schema, row.status, row.policy) == (version.schema, status, version.policy)
        assert row.state == ("retired" if version.retired else "active")
        if row.revision in values:
            assert row.value == values[row.revision], f"{format_id(row.atom)}: another value than was written"
        meant = [slot.at or _revision(model.head(slot.target, at)) for slot in version.slots]
        assert [slot.resolved for slot in row.slots] == meant, f"{format_id(row.atom)}: slots mean something else"
        assert [(slot.role, slot.target) for slot in row.slots] == [(slot.role, slot.target) for slot in version.slots]


@checker
def pages_are_the_whole_once(model: Model, asked: Mapping[str, Any], pages: Sequence[Page]) -> None:
    """All pages of a read are as of one position; put together they are the whole, with no repetition and no gap."""
    positions = {tuple(sorted(page.receipt.observed().items())) for page in pages}
    assert len(positions) == 1, f"the pages of one read are as of {positions}"
    got = [(row.atom, row.revision) for page in pages for row in page.atoms]
    whole = expected_rows(model, asked, dict(positions.pop()))
    assert len(got) == len(whole), f"{asked}: {len(got)} rows in {len(pages)} pages, {len(whole)} in all"
    assert got == whole, f"{asked}: {_shown(got)} is not {_shown(whole)}"
    assert all(page.atoms for page in pages[1:]), "a continuation gives an empty page"


@checker
def receipts_replay_to_the_same_bytes(given: bytes, positions: Mapping[int, int], again: Page) -> None:
    assert again.body() == given, "the page of a receipt is another one now"
    assert again.receipt.observed() == positions


def expected_rows(model: Model, asked: Mapping[str, Any], at: Mapping[int, int]) -> list[tuple[bytes, bytes]]:
    """(atom, revision) of each row of a selector, from brute force."""

    def heads(atoms: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        return [(atom, head.revision) for atom in atoms if (head := model.head(atom, at))]

    kind = asked["type"]
    if kind == "members":
        found = model.member_rows(
            asked["group"],
            at,
            and_=asked["and"],
            or_=asked["or"],
            not_=asked["not"],
            include_retired=asked["include_retired"],
        )
        return heads([member for member, _, _ in found])
    if kind == "relations":
        return heads([atom for atom, _ in model.relation_rows(asked["target"], asked["role"], at)])
    if kind == "groups":
        return heads(model.group_rows(asked["member"], at))
    if kind == "history":
        return [(version.atom, version.revision) for version in model.history(asked["atom"], at)]
    return heads(asked["ids"])


def _version(model: Model, atom: bytes, revision: bytes) -> Version:
    found = [version for version in model.versions.get(atom, []) if version.revision == revision]
    assert len(found) == 1, f"revision {format_id(revision)} stands {len(found)} times in the log"
    return found[0]


def _revision(version: Version | None) -> bytes | None:
    return None if version is None else version.revision


def _check_change(change: Mapping[str, Any], version: Version, batch: Accepted, aliases: Mapping[str, Any]) -> None:
    where = f"the {change['op']} at {batch.position}"
    assert version.position == batch.position, f"{where} stands at {version.position}"
    assert version.retired == (change["op"] == "retire"), f"{where} is retired: {version.retired}"
    expected = raw_id(change["expected"]) if "expected" in change else None
    assert version.previous == expected, f"{where} follows another revision than was expected"
    if "schema" in change:
        assert version.schema == change["schema"], f"{where} has the schema {version.schema}"
    if "slots" in change:
        wanted = [(slot["role"], _target(slot["target"], batch.space, aliases)) for slot in change["slots"]]
        assert [(slot.role, slot.target) for slot in version.slots] == wanted, f"{where} has other slots"
        keys = [slot.get("order_key", "").encode() for slot in change["slots"]]
        assert [slot.order_key for slot in version.slots] == keys, f"{where} has other order keys"
    elif version.before is not None:
        assert version.slots == version.before.slots, f"{where} does not carry its slots over"


def _target(ref: str, space: str, aliases: Mapping[str, Any]) -> bytes:
    return aliases[ref].atom if ref in aliases else atom_of(ref, space)


def _by_scope(sent: Sequence[Sent]) -> dict[tuple[str, str], list[Sent]]:
    found: dict[tuple[str, str], list[Sent]] = {}
    for one in sent:
        found.setdefault(one.scope, []).append(one)
    return found


def _shown(rows: Sequence[tuple[bytes, bytes]]) -> str:
    return " ".join(f"{atom.hex()[-6:]}@{revision.hex()[-6:]}" for atom, revision in rows)
