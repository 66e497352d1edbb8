"""What an import did, counted while it runs, so that a stopped one can tell too."""

from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError

ERRORS_MAX: Final = 100  # shown; the rest is counted in `refused`


@dataclass(slots=True)
class Summary:
    """Writes: `batches` = `written` + `skipped` + `unchanged` + `refused`, as far as the import came.

    `skipped`: accepted by an earlier import. `unchanged`: the store said all of it already. Lines: `no_ops` changed
    nothing, `superseded` are followed by later lines of the same id that were imported before, `purged` name erased
    atoms. `changes` are revisions written. `split` counts batches written in parts, `retries` lost races. Of git:
    `commits` done, and versions of files `passed_over`, by reason.
    """

    space: str
    batches: int = 0
    written: int = 0
    skipped: int = 0
    unchanged: int = 0
    refused: int = 0
    split: int = 0
    lines: int = 0
    changes: int = 0
    no_ops: int = 0
    superseded: int = 0
    purged: int = 0
    retries: int = 0
    commits: int = 0
    passed_over: dict[str, int] = field(default_factory=dict)
    errors: list[AtomlogError] = field(default_factory=list)

    def refuse(self, error: AtomlogError) -> None:
        self.batches += 1
        self.refused += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)

    def to_dict(self) -> dict[str, Any]:
        return {
            "space": self.space,
            "batches": self.batches,
            "written": self.written,
            "skipped": self.skipped,
            "unchanged": self.unchanged,
            "refused": self.refused,
            "split": self.split,
            "lines": self.lines,
            "changes": self.changes,
            "no_ops": self.no_ops,
            "superseded": self.superseded,
            "purged": self.purged,
            "retries": self.retries,
            "commits": self.commits,
            "passed_over": dict(self.passed_over),
            "errors": [error.to_dict() for error in self.errors],
        }
