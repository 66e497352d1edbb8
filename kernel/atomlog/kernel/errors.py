"""Every error a caller can meet. Few kinds; each kind says what to do.

::

    AtomlogError
    ├── InvalidError         invalid      fix the request
    ├── ConflictError        conflict     re-read, decide again (IDEMPOTENCY_MISMATCH: use a new key)
    ├── UnavailableError     unavailable  retry after `retry_after_ms`
    ├── InDoubtError         unknown      retry with the same idempotency key: it will tell
    ├── CapabilityError      capability   ask for less
    ├── DeniedError          denied       stop
    ├── GoneError            gone         start again
    ├── BudgetError          budget       what was validated is in the result
    └── FatalError           fatal        an operator is needed

Codes are stable strings. `fail(code, …)` makes the error of the right class.
"""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Detail = Mapping[str, Any]


class AtomlogError(Exception):
    """`code`, `kind`, `message`; `details` names every failing part (`path`, `code`, `message`, …).

    `retry_after_ms` is None when retrying the same request unchanged cannot help.
    """

    kind = "internal"

    def __init__(
        self, code: str, message: str, *, details: Sequence[Detail] = (), retry_after_ms: int | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = tuple(details)
        self.retry_after_ms = retry_after_ms

    @property
    def exit_code(self) -> int:
        return CODES[self.code].exit_code

    def to_dict(self) -> dict[str, Any]:
        """The `error` object of a result."""
        return {
            "code": self.code,
            "kind": self.kind,
            "message": self.message,
            "details": [dict(detail) for detail in self.details],
            "retry_after_ms": self.retry_after_ms,
        }


class InvalidError(AtomlogError):
    kind = "invalid"


class ConflictError(AtomlogError):
    kind = "conflict"


class UnavailableError(AtomlogError):
    kind = "unavailable"


class InDoubtError(AtomlogError):
    kind = "unknown"


class CapabilityError(AtomlogError):
    kind = "capability"


class DeniedError(AtomlogError):
    kind = "denied"


class GoneError(AtomlogError):
    kind = "gone"


class BudgetError(AtomlogError):
    kind = "budget"


class FatalError(AtomlogError):
    kind = "fatal"


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """`error` is the class of the code, `exit_code` what a process ends with, `meaning` one sentence."""

    error: type[AtomlogError]
    exit_code: int
    meaning: str


EXIT_INTERNAL: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_FATAL: Final = 70

CODES: Final[Mapping[str, CodeSpec]] = {
    "INVALID_INPUT": CodeSpec(InvalidError, 2, "A part of the request is not what it must be."),
    "INCLUDE_CYCLE": CodeSpec(InvalidError, 2, "Includes inside the batch form a cycle."),
    "BOUND_EXCEEDED": CodeSpec(InvalidError, 2, "A part is larger than its limit."),
    "STORE_NOT_FOUND": CodeSpec(InvalidError, 2, "The directory is no store."),
    "STORE_TOO_NEW": CodeSpec(InvalidError, 2, "The store was made by a newer version of the program."),
    "STORE_UNSAFE": CodeSpec(InvalidError, 2, "A topic is kept less safely than the store needs."),
    "REVISION_CONFLICT": CodeSpec(ConflictError, 3, "An expected revision is not the head."),
    "PRECONDITION_FAILED": CodeSpec(ConflictError, 3, "A precondition of the batch does not hold."),
    "IDEMPOTENCY_MISMATCH": CodeSpec(ConflictError, 3, "The key was used before for other content."),
    "REFERENCE_UNAVAILABLE": CodeSpec(UnavailableError, 4, "A referenced atom or revision could not be confirmed."),
    "INDEX_LAGGING": CodeSpec(UnavailableError, 4, "An index has not reached the position that was asked for."),
    "NOT_OWNER": CodeSpec(UnavailableError, 4, "Another process owns the partition."),
    "OVERLOADED": CodeSpec(UnavailableError, 4, "The store takes no more now: queue full or disk reserve reached."),
    "KEY_UNAVAILABLE": CodeSpec(UnavailableError, 4, "A content key is not here yet, or the master key is missing."),
    "STORE_LOCKED": CodeSpec(UnavailableError, 4, "Another process holds the store and cannot be reached."),
    "KAFKA_UNAVAILABLE": CodeSpec(UnavailableError, 4, "The brokers did not answer, or cannot do it now."),
    "IN_DOUBT": CodeSpec(InDoubtError, 4, "The outcome of the write is not known."),
    "ATOMICITY_UNAVAILABLE": CodeSpec(CapabilityError, 6, "The batch cannot be made all-or-nothing."),
    "CONSISTENCY_UNAVAILABLE": CodeSpec(CapabilityError, 6, "The asked consistency or guard cannot be given."),
    "NOT_INSTALLED": CodeSpec(CapabilityError, 6, "An optional part of the program is not installed."),
    "BUDGET_EXHAUSTED": CodeSpec(BudgetError, 6, "A limit of the request was used up."),
    "NOT_FOUND": CodeSpec(DeniedError, 5, "Not found, or not visible to you."),
    "ACCESS_DENIED": CodeSpec(DeniedError, 5, "The grant for this act is missing."),
    "PURGED": CodeSpec(DeniedError, 5, "The content was erased."),
    "STORE_READ_ONLY": CodeSpec(DeniedError, 5, "The store directory cannot be written."),
    "CURSOR_EXPIRED": CodeSpec(GoneError, 5, "The continuation is expired, foreign or forged."),
    "RECEIPT_EXPIRED": CodeSpec(GoneError, 5, "The receipt is not kept any more."),
    "REQUEST_EXPIRED": CodeSpec(GoneError, 5, "Requests of an inbox were not kept until their turn came."),
    "CORRUPT": CodeSpec(FatalError, EXIT_FATAL, "Stored bytes are not what was written."),
    "LOG_DIVERGED": CodeSpec(FatalError, EXIT_FATAL, "The log is another history than the one that was read before."),
    "LOG_MISMATCH": CodeSpec(FatalError, EXIT_FATAL, "The log is not the one this store belongs to."),
    "UPGRADE_REQUIRED": CodeSpec(FatalError, EXIT_FATAL, "The log needs a newer version of the program."),
    "CLOCK_SKEW": CodeSpec(FatalError, EXIT_FATAL, "The clock is far behind the log's last time, or off the brokers'."),
}


def fail(code: str, message: str, *, details: Sequence[Detail] = (), retry_after_ms: int | None = None) -> AtomlogError:
    """The error of this code, to be raised; its class follows from the code."""
    return CODES[code].error(code, message, details=details, retry_after_ms=retry_after_ms)


def from_dict(error: Mapping[str, Any]) -> AtomlogError:
    """The error that `to_dict` described, e.g. one that came from another process. CORRUPT when it is none of these."""
    code, details, retry_after_ms = (error.get(name) for name in ("code", "details", "retry_after_ms"))
    if not isinstance(code, str) or code not in CODES:
        return fail("CORRUPT", f"an error of the unknown code {code!r:.100} was noted")
    return fail(
        code,
        str(error.get("message")),
        details=[one for one in details if isinstance(one, Mapping)] if isinstance(details, list | tuple) else (),
        retry_after_ms=retry_after_ms if type(retry_after_ms) is int else None,
    )


def of_system(error: OSError, where: str) -> AtomlogError:
    """A fault of the machine that a store stands on, as one of its own; `where` is named when the fault names no file.

    No rights: STORE_READ_ONLY. No space, files or memory: OVERLOADED. The rest, CORRUPT: a disk that fails, or
    something in the place of a file.
    """
    text = f"{error.filename or where}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return fail("STORE_READ_ONLY", f"{text}; make the file and its directory writable")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return fail("OVERLOADED", f"{text}; give it more", retry_after_ms=1_000)
    return fail("CORRUPT", f"{text}; look after the disk, and at what stands there")
