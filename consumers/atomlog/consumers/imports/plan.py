"""What an import writes: lines → runs → writes, each with its idempotency key. Pure; nothing of the store enters.

Where a run over the bounds is cut depends on its lines alone, so that a repeated import cuts at the same places and
finds its writes by their keys.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.consumers.imports.lines import Line
from atomlog.consumers.imports.occurrences import Occurrences
from atomlog.consumers.imports.runs import Read, Run, runs
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError, Detail, fail

REVISION_BYTES: Final = 512  # of a revision without its value: ids, names, slots, sealing, rounded up
PART_BYTES_MAX: Final = 32 * 1024 * 1024  # raw lines of one write: it must fit a request to another process


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Lines that become one batch of the store. `part` counts from 1 within a run that was split."""

    key: str
    lines: tuple[Line, ...]
    batch: str | None
    part: int = 1
    last: bool = True

    @property
    def size_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)

    def halves(self) -> "tuple[Write, Write]":
        """Two writes instead of this one, which turned out too large for one batch. Their keys come from its key."""
        middle = len(self.lines) // 2
        first, second = (
            Write(key=f"{self.key}/{n}", lines=lines, batch=self.batch, part=self.part, last=self.last)
            for n, lines in enumerate((self.lines[:middle], self.lines[middle:]))
        )
        return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A run of which nothing is written, and why."""

    batch: str | None
    first: int
    last: int
    size_bytes: int
    error: AtomlogError


def plan(read: Read, *, split: bool, bounds: Bounds) -> Iterator[Write | Refused]:
    """The writes of an import, in order.

    A run over the bounds is refused with its size, or cut into parts with `split`: by lines in order, as few as
    the bounds allow; a line never apart from its memberships.
    """
    seen = Occurrences()
    for run in runs(read):
        error = _refusal(run, read, split, bounds)
        if error is not None:
            yield _refused(run, error)
            continue
        parts = _parts(run.again(read), bounds) if split else iter((tuple(run.again(read)),))
        for part, lines, last in _numbered(parts):
            yield Write(key=write_key(lines, seen), lines=lines, batch=run.batch, part=part, last=last)


def write_key(lines: Sequence[Line], seen: Occurrences) -> str:
    """`import:` ‖ SHA-256 of the canonical lines ‖ `:` ‖ how often these same lines came before."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.canonical + b"\n")
    return f"import:{digest.hexdigest()}:{seen.count(digest.digest())}"


@dataclass(slots=True)
class Part:
    """The lines of a write to be, with the most that they can cost."""

    bounds: Bounds
    lines: list[Line] = field(default_factory=list)
    _revisions: int = 0
    _encoded_bytes: int = 0
    _raw_bytes: int = 0
    _changed: dict[str, Line] = field(default_factory=dict)
    _named: dict[str, Line] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        revisions, encoded_bytes = self._cost(line)
        self.lines.append(line)
        self._revisions += revisions
        self._encoded_bytes += encoded_bytes
        self._raw_bytes += line.size_bytes
        self._changed[line.id] = line
        for group in line.groups or ():
            self._named.setdefault(group, line)

    def has_room(self, line: Line) -> bool:
        """True when the line fits whatever the store holds; retired memberships are not known here."""
        revisions, encoded_bytes = self._cost(line)
        return (
            self._revisions + revisions <= self.bounds.batch_revisions_max
            and self._encoded_bytes + encoded_bytes <= self.bounds.batch_bytes_max
            and self._raw_bytes + line.size_bytes <= PART_BYTES_MAX
        )

    def clash(self, line: Line) -> Line | None:
        """The line that cannot be in one write with this one: the same id, or a group deleted in the other."""
        if line.id in self._changed:
            return self._changed[line.id]
        if line.delete and line.id in self._named:
            return self._named[line.id]
        deleted = (self._changed[group] for group in line.groups or () if group in self._changed)
        return next((other for other in deleted if other.delete), None)

    def _cost(self, line: Line) -> tuple[int, int]:
        new_groups = sum(group not in self._named for group in line.groups or ())
        revisions = 1 + len(line.groups or ()) + new_groups
        value_bytes = len(line.canonical)
        if value_bytes > self.bounds.value_bytes_max:
            value_bytes = REVISION_BYTES  # the text goes to the blob store
        return revisions, revisions * REVISION_BYTES + value_bytes


def _parts(lines: Iterator[Line], bounds: Bounds) -> Iterator[tuple[Line, ...]]:
    part = Part(bounds)
    for line in lines:
        if part.lines and (part.clash(line) is not None or not part.has_room(line)):
            yield tuple(part.lines)
            part = Part(bounds)
        part.add(line)
    yield tuple(part.lines)


def _numbered(parts: Iterator[tuple[Line, ...]]) -> Iterator[tuple[int, tuple[Line, ...], bool]]:
    """Each part with its number and whether it is the last."""
    held = next(parts)
    number = 1
    for part in parts:
        yield number, held, False
        held = part
        number += 1
    yield number, held, True


def _refusal(run: Run, read: Read, split: bool, bounds: Bounds) -> AtomlogError | None:
    if run.errors:
        return _bad_lines(run)
    if split:
        return None
    if run.count > bounds.batch_revisions_max:
        message = f"{run.count} lines are more than the {bounds.batch_revisions_max} revisions of a batch"
        return _over(run, message)
    part = Part(bounds)
    for line in run.again(read):
        other = part.clash(line)
        if other is not None:
            return _clash(line, other)
        part.add(line)
    if run.size_bytes > PART_BYTES_MAX:
        return _over(run, f"{run.size_bytes} bytes of lines are more than {PART_BYTES_MAX}")
    return None


def _refused(run: Run, error: AtomlogError) -> Refused:
    return Refused(batch=run.batch, first=run.first, last=run.last, size_bytes=run.size_bytes, error=error)


def _bad_lines(run: Run) -> AtomlogError:
    details: list[Detail] = [{**detail, "line": bad.number} for bad in run.errors for detail in bad.error.details]
    more = f" (bad lines: {run.error_count})" if run.error_count > 1 else ""
    rest = "" if run.batch is None else f"; nothing of batch {ascii(run.batch)[:80]} was written"
    first = run.errors[0].error
    return fail(first.code, f"{first.message}{more}{rest}", details=details)


def _over(run: Run, message: str) -> AtomlogError:
    where = f"lines {run.first} to {run.last}"
    detail = {"path": where, "code": "BOUND_EXCEEDED", "message": message, "line": run.first}
    return fail("BOUND_EXCEEDED", f"{where}: {message}; --split writes them in parts", details=[detail])


def _clash(line: Line, other: Line) -> AtomlogError:
    if line.id == other.id:
        message = f"line {other.number} has the id {ascii(line.id)[:80]} too; a batch changes an atom once"
    else:
        message = f"line {other.number} names or deletes the same group; a batch does one of them"
    path = f"{line.where}.id"
    detail = {"path": path, "code": "INVALID_INPUT", "message": message, "line": line.number, "other": other.number}
    return fail("INVALID_INPUT", f"{path}: {message}. Give them different batches, or use --split", details=[detail])
