"""What an import needs to know of the store, as values, and the port it learns them through."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from atomlog.consumers.imports.lines import membership_key
from atomlog.kernel.ids import keyed_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of an atom. `value_sha256` is of the value's canonical JSON; ends of valid time None = open or none."""

    revision: bytes
    retired: bool
    schema: str
    value_sha256: bytes
    valid_from_us: int | None = None
    valid_to_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """An active membership. `imported`: an import made it, so that an import may retire it."""

    atom: bytes
    revision: bytes
    imported: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Memberships:
    """The active memberships of one member, as of a read position of the import's partition."""

    active: tuple[Membership, ...]
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Heads by atom (absent ones are not in it) and memberships by member, as far as one write needs them."""

    heads: Mapping[bytes, Head] = field(default_factory=dict)
    memberships: Mapping[bytes, Memberships] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where the atoms of an import live: ids and group names are keys of one space and policy."""

    space: str
    policy: str

    def atom(self, key: str) -> bytes:
        return keyed_id(self.space, self.policy, key)

    def membership(self, group: str, member: str) -> bytes:
        return self.atom(membership_key(group, member))


class ImportStore(Protocol):
    """The store as an import sees it. Reads see every write that this import has made."""

    async def accepted(self, key: str) -> bool:
        """Whether a write with this idempotency key is known to be accepted. Claims nothing, writes nothing."""
        ...

    async def heads(self, atoms: Sequence[bytes]) -> Mapping[bytes, Head]:
        """The heads of those atoms that there are, retired ones too."""
        ...

    async def memberships(self, member: bytes) -> Memberships: ...

    async def write(self, batch: Mapping[str, Any]) -> None:
        """Durable and acknowledged on return; raises the store's errors."""
        ...

    async def settle(self) -> None:
        """From here on reads see everything that is in the log now, other writers' batches too."""
        ...
