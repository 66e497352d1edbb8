"""What is taken out of the program is missed: some seed says so."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from atomlog.kernel import model
from atomlog.kernel.committer import Committer
from atomlog.kernel.heads import HeadView
from atomlog.kernel.inflight import Group
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.log.writer import Syncer
from atomlog.kernel.owner import Owner
from atomlog.projections.base import KvProjection
from tests.simulation.seeds import run
from tests.simulation.simulation import Plan, simulate

SEEDS_MAX = 120
Patch = pytest.MonkeyPatch


def never_syncs(patch: Patch) -> None:
    """Groups are published without being on the disk."""
    patch.setattr(Syncer, "sync", lambda self, file, path: None)


def syncs_no_directory(patch: Patch) -> None:
    """Files are named before their names are on the disk."""
    patch.setattr("tests.simulation.ports.SimulatedFiles.sync_directory", lambda self, path: None)


def leaves_torn_tails(patch: Patch) -> None:
    """What stands behind the last whole group stays there."""
    patch.setattr("tests.simulation.ports.SimulatedFile.truncate", lambda self, size: None)


def finds_no_duplicate(patch: Patch) -> None:
    """The same request is carried out as often as it comes."""
    patch.setattr(HeadView, "request", lambda self, partition, request_key: None)


def goes_on_after_a_doubt(patch: Patch) -> None:
    """An append that may have failed changes nothing."""
    patch.setattr(Owner, "_doubt", lambda self, error: self._committer.open())


def knows_of_no_doubt(patch: Patch) -> None:
    """`never` where it should say that it does not know."""
    real = Owner._outcome

    async def hasty(self: Owner, question: model.WriteRequest, principal: str) -> model.Outcome:
        found = await real(self, question, principal)
        return dataclasses.replace(found, state="never") if found.state == "unknown" else found

    patch.setattr(Owner, "_outcome", hasty)


def writes_effects_before_the_position(patch: Patch) -> None:
    """Effects of a projection, and the position behind them, are two writes."""
    real = KvProjection._commit

    def twice(self: KvProjection, partition: int, standing: Any, after: Any, staged: Any) -> None:
        self.kv.write([(key, value) for key, value in staged._changes.items() if value is not None])
        real(self, partition, standing, after, staged)

    patch.setattr(KvProjection, "_commit", twice)


def loses_a_record(patch: Patch) -> None:
    """A projection drops the last of several records."""
    real = KvProjection.apply

    def short(self: KvProjection, partition: int, records: Any, after: Any) -> None:
        real(self, partition, records[:-1] if len(records) > 1 else records, after)

    patch.setattr(KvProjection, "apply", short)


def keeps_its_locks(patch: Patch) -> None:
    """What is released is still held."""
    patch.setattr("atomlog.consumers.generations.HeldLock.release", lambda self: None)


def stores_no_blob(patch: Patch) -> None:
    """A batch names a blob that nobody has stored."""

    async def nothing(self: Committer, group: Group) -> None:
        pass

    patch.setattr(Committer, "_put_blobs", nothing)


def destroys_used_keys(patch: Patch) -> None:
    """A take-over destroys keys of records that count."""
    real = KeyAllocator.unused
    patch.setattr(KeyAllocator, "unused", lambda self, used: real(self, {}))


PLANTED: tuple[Callable[[Patch], None], ...] = (
    never_syncs,
    syncs_no_directory,
    leaves_torn_tails,
    finds_no_duplicate,
    goes_on_after_a_doubt,
    knows_of_no_doubt,
    writes_effects_before_the_position,
    loses_a_record,
    keeps_its_locks,
    stores_no_blob,
    destroys_used_keys,
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert any(run(seed).error is not None for seed in range(SEEDS_MAX)), plant.__doc__


@pytest.mark.timeout(300)
def test_a_refusal_that_waits_for_no_proof_is_found_where_owners_are_often_left_behind(monkeypatch: Patch) -> None:
    """An owner that does not know yet that it is none refuses what it has not seen."""

    def at_once(self: Committer, group: Group, refused: list[Any]) -> None:
        for ask in refused:
            self._decide_refused(ask)

    def is_found(seed: int) -> bool:
        plan = Plan(seed=seed, world="broker", nodes=2, clients=4, ops=12, chaos=60, spread=1, names=("ids",))
        return simulate(plan).error is not None

    assert not is_found(402)
    monkeypatch.setattr(Committer, "_fence", at_once)
    assert any(is_found(seed) for seed in range(400, 600))
