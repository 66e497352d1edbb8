"""One request and what the heads say of the atoms it names: what every stage of a decision looks at."""

from atomlog.kernel import model
from atomlog.kernel.errors import Detail
from atomlog.kernel.findings import detail
from atomlog.kernel.heads import Head, HeadView
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.plan import Prepared


class Case:
    """`locate` first; then, per change, `atoms` and `heads` (None where an atom is created)."""

    def __init__(self, view: HeadView, partition: int, prepared: Prepared) -> None:
        self.view = view
        self.partition = partition
        self.prepared = prepared
        self.request = prepared.request
        self.atoms: list[bytes] = []
        self.heads: list[Head | None] = []
        self.aliases: dict[str, int] = {}  # alias → index of its change
        self.new: dict[bytes, int] = {}  # atom of this batch → index of its change

    def locate(self) -> list[Detail]:
        """Find the atoms; what is wrong when one is absent, in another space, or changed twice."""
        failures: list[Detail] = []
        for index, change in enumerate(self.request.changes):
            if change.alias is not None:
                self.aliases[change.alias] = index
        for index, change in enumerate(self.request.changes):
            atom = self._atom_of_change(index, change)
            head = self.view.head(self.partition, atom)
            self.atoms.append(atom)
            self.heads.append(head)
            if atom in self.new:
                other = self.request.changes[self.new[atom]].path
                message = f"changes the same atom as {other}; one batch changes an atom once"
                failures.append(detail(change.path, "INVALID_INPUT", message, atom=format_id(atom)))
            self.new[atom] = index
            if not isinstance(change, model.Create):
                failures += self._misplaced(atom, head, f"{change.path}.atom")
        for guard in self.request.preconditions:
            if isinstance(guard, model.HeadIs | model.Absent | model.HeadUnchanged):
                failures += self._foreign_guard(guard)
        return failures

    def _atom_of_change(self, index: int, change: model.Change) -> bytes:
        if not isinstance(change, model.Create):
            return self.atom(change.atom)
        if change.key is not None:
            return keyed_id(self.request.space, change.policy, change.key)
        return self.prepared.assigned[index].atom

    def atom(self, ref: model.AtomRef) -> bytes:
        """The atom that a reference of the request stands for."""
        if isinstance(ref, model.Alias):
            index = self.aliases[ref.name]
            change = self.request.changes[index]
            return self.atoms[index] if index < len(self.atoms) else self._atom_of_change(index, change)
        return self.prepared.handles[ref] if isinstance(ref, model.Handle) else ref

    def _misplaced(self, atom: bytes, head: Head | None, path: str) -> list[Detail]:
        if head is not None and head.space == self.request.space:
            return []
        elsewhere = head or self.view.head_anywhere(self.partition, atom)
        if elsewhere is None:
            message = "not found, or not visible to you"
            return [detail(path, "NOT_FOUND", message, atom=format_id(atom))]
        message = (
            f"the atom is in space {elsewhere.space}; a batch is atomic inside one space: write it there on its own"
        )
        return [detail(path, "ATOMICITY_UNAVAILABLE", message, atom=format_id(atom))]

    def _foreign_guard(self, guard: model.HeadIs | model.Absent | model.HeadUnchanged) -> list[Detail]:
        atom = self.atom(guard.atom)
        head = self.view.head_anywhere(self.partition, atom)
        if head is None or head.space == self.request.space:
            return []
        message = f"the atom is in space {head.space}; a guard can only name atoms of the batch's own space"
        return [detail(f"{guard.path}.atom", "CONSISTENCY_UNAVAILABLE", message, atom=format_id(atom))]

    def schema(self, index: int) -> str:
        """The schema of a changed atom."""
        change = self.request.changes[index]
        return change.schema if isinstance(change, model.Create) else self.head(index).clear.schema

    def policy(self, index: int) -> str:
        """The policy of a changed atom."""
        change = self.request.changes[index]
        return change.policy if isinstance(change, model.Create) else self.head(index).clear.policy

    def policy_of(self, atom: bytes) -> str | None:
        """The policy of any atom; None when it is not known."""
        index = self.new.get(atom)
        if index is not None:
            return self.policy(index)
        head = self.view.head_anywhere(self.partition, atom)
        return None if head is None else head.clear.policy

    def head(self, index: int) -> Head:
        """The head of a change that is no create."""
        head = self.heads[index]
        assert head is not None
        return head
