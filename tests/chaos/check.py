"""What must hold of a cluster when the faults are over: the whole log against what every client was told."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.ports import KeyStore
from tests.chaos.records import Log
from tests.processes.clients import Told


def acknowledged_once(log: Log, told: Sequence[Told]) -> None:
    """Each accepted batch stands where its receipt says, whole, once; and every batch of the log is somebody's."""
    batches = {(batch.partition, batch.position): batch for batch in log.model.batches}
    twice = [key for key, count in Counter(batch.request_key for batch in log.model.batches).items() if count > 1]
    assert not twice, f"{len(twice)} requests count twice"
    for one in told:
        if one.result is None:
            continue
        receipt = one.result["receipt"]
        batch = batches.pop((receipt["partition"], receipt["position"]), None)
        assert batch is not None, f"{one.batch['idempotency_key']} was accepted at {receipt}, where no batch of it is"
        made = [result["revision"] for result in one.result["results"]]
        assert made == [format_id(revision) for revision in batch.revisions], (
            f"{one.batch['idempotency_key']} is not whole"
        )
    assert not batches, f"nobody was told of the batches at {sorted(batches)[:5]}"


def one_chain_per_atom(log: Log) -> None:
    """Each revision names the one before it, and no id is used twice."""
    seen: set[bytes] = set()
    for atom, versions in log.model.versions.items():
        before = None
        for version in versions:
            assert version.previous == before, f"{format_id(atom)}: {format_id(version.revision)} follows another one"
            assert version.revision not in seen, f"{format_id(version.revision)} stands twice"
            seen.add(version.revision)
            before = version.revision


def refusals_rest_on_the_log(log: Log, told: Sequence[Told]) -> int:
    """A conflict was told only where the expected revision had a successor; how many were looked at.

    A refusal that rested on what turned out void would name a head that the log does not have.
    """
    followed = {
        format_id(version.previous)
        for versions in log.model.versions.values()
        for version in versions
        if version.previous is not None
    }
    known = {format_id(version.revision) for versions in log.model.versions.values() for version in versions}
    refused = [one for one in told if one.refused == "REVISION_CONFLICT"]
    for one in refused:
        expected = one.batch["changes"][0].get("expected")
        assert expected in followed, f"{one.batch['idempotency_key']} was refused, but {expected} is still the head"
        assert one.head in known, f"{one.batch['idempotency_key']} was told of the head {one.head}, which never counted"
    return len(refused)


async def keys_of_voids_are_destroyed(log: Log, keys: KeyStore) -> int:
    """What does not count cannot be read: no key lives that only void records use. How many revisions they have.

    A void revision of an atom that lives is sealed with that atom's own key, which lives as long as the atom does.
    """
    revisions = log.revisions_of_voids()
    used = {version.data[48:57] for versions in log.model.versions.values() for version in versions}
    for key_id in {revision[48:57] for revision in revisions} - used:
        page = await keys.get(key_id[:8])
        if page is not None:
            assert page.destroyed[key_id[8] // 8] >> key_id[8] % 8 & 1, f"key {key_id.hex()} of a void record lives"
    return len(revisions)


async def voids_cannot_be_opened(log: Log, content: ContentOpener) -> None:
    """The same, by trying: with the master key and every key page, no text of a void record comes out."""
    used = {version.data[48:57] for versions in log.model.versions.values() for version in versions}
    for revision in log.revisions_of_voids():
        if revision[48:57] in used:
            continue
        try:
            await content.open(revision)
        except AtomlogError as error:
            assert error.code in ("PURGED", "CORRUPT"), error  # destroyed; or a page that never became durable
        else:
            raise AssertionError(f"the text of a void record under key {revision[48:57].hex()} was read")


def bounded_terms(log: Log, most: int) -> None:
    """No duel: a partition changes hands as often as somebody gave cause, not all the time."""
    for partition, positions in log.terms.items():
        assert len(positions) <= most, f"partition {partition} had {len(positions)} terms, more than {most}"


def replicas_agree(digests: Mapping[str, Mapping[str, Any]]) -> None:
    """`digests`: replica → (partition, position) → digest. Replicas at one position hold the same."""
    by_place: dict[Any, dict[Any, list[str]]] = {}
    for replica, places in digests.items():
        for place, digest in places.items():
            by_place.setdefault(place, {}).setdefault(digest, []).append(replica)
    for place, found in by_place.items():
        assert len(found) == 1, f"{place}: {found}"
