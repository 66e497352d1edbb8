"""Each file of a store, damaged: the answer is the same, or a typed error, or says what it lacks; nothing dies."""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.corruption.damage import Damage, damages
from tests.corruption.store import Sound
from tests.corruption.table import KINDS, Kind
from tests.corruption.worker import Finding, run_cases

SCALE: Final = int(os.environ.get("ATOMLOG_CORRUPTION_SCALE", "1"))  # `make soak-corruption` sets it
SEED: Final = int(os.environ.get("ATOMLOG_CORRUPTION_SEED", "1"))
FLIPS: Final = {
    "log": 64,
    "database": 64,
    "shards": 64,
    "keys": 400,
    "receipts": 64,
    "closed receipts": 400,
    "files": 64,
}
FILES_MAX: Final = 6  # of one kind in one check, unless at scale
WHOLE: Final = 12  # cases of one kind with the whole store, at scale 1
FOUND_WITHOUT_NAME: Final = (
    "OVERLOADED",
    "LOG_MISMATCH",
    "INDEX_LAGGING",
    "RECEIPT_EXPIRED",
    "CURSOR_EXPIRED",
    "KEY_UNAVAILABLE",
)

pytestmark = pytest.mark.timeout(900 * SCALE)
PARTS: Final = [
    (check, kind.name)
    for kind in KINDS
    for check in ([kind.check] if kind.check else []) + (["closed receipts"] if kind.check == "receipts" else [])
]


@pytest.mark.parametrize(("check", "name"), PARTS)
def test_a_part_over_a_damaged_file_gives_the_same_or_refuses_it(sound: Sound, check: str, name: str) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    base = sound.closed if check.startswith("closed") else sound.now
    cases = planned(sound, kind, flips=FLIPS[check] * SCALE, cuts=12 * SCALE, files=FILES_MAX * SCALE, root=base)
    findings = list(run_cases(sound.now.parent, check, cases))
    assert len(findings) == len(cases) >= 10
    assert kind.found <= {damage.manner for damage in cases}, "not every manner that must be found was tried"
    failed(findings)
    for finding in findings:
        if finding.damage.manner in kind.found and not finding.refused:
            assert harmless(sound, finding.damage), f"not found: {finding.damage}"
        for error in finding.refused.values():
            assert error["code"] in kind.codes | {"CORRUPT"}, f"{finding.damage}: {error}"
    found_most(kind, findings)
    named(findings)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_a_store_with_a_damaged_file_gives_the_same_or_refuses_it(sound: Sound, name: str) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    chance = random.Random(f"{SEED} {name}")
    cases = planned(sound, kind, flips=6 * SCALE, cuts=3 * SCALE, files=100, root=sound.now)
    chance.shuffle(cases)
    chosen = one_of_each(cases, WHOLE * SCALE)
    findings = list(
        run_cases(
            sound.now.parent,
            "store",
            [replace(damage, read_only=number % 3 == 2) for number, damage in enumerate(chosen)],
        )
    )
    failed(findings)
    for finding in findings:
        assert finding.codes <= kind.codes, f"{finding.damage}: {finding.text[:2000]}"
        if kind.check is None and finding.damage.manner in kind.found:
            assert finding.refused, f"not found: {finding.damage}"
        if not kind.codes:
            assert set(finding.said) <= {"swept", "claimed", *kind.says}, f"{finding.damage}: {finding.said}"
    named(findings)


def planned(sound: Sound, kind: Kind, *, flips: int, cuts: int, files: int, root: Path) -> list[Damage]:
    """The damages of some files of a kind, below `root`."""
    chance = random.Random(f"{SEED} {kind.name} {flips}")
    paths = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    alike = [path for path in paths if kind.fits(path)]
    chosen = sorted(chance.sample(alike, min(files, len(alike))))
    return [
        damage
        for path in chosen
        for damage in damages(
            root, sound.older, path, chance.sample(alike, min(4, len(alike))), flips=flips, cuts=cuts, chance=chance
        )
    ]


def one_of_each(cases: Sequence[Damage], count: int) -> list[Damage]:
    """`count` of the cases; of each manner about as many."""
    by_manner: dict[str, list[Damage]] = {}
    for damage in cases:
        by_manner.setdefault(damage.manner, []).append(damage)
    chosen: list[Damage] = []
    while by_manner and len(chosen) < count:
        for manner in sorted(by_manner):
            chosen.append(by_manner[manner].pop())
            if not by_manner[manner]:
                del by_manner[manner]
    return chosen[:count]


def failed(findings: Sequence[Finding]) -> None:
    wrong = [f"{finding.damage}: {finding.wrong[0]}" for finding in findings if finding.wrong]
    assert not wrong, f"seed {SEED}: {len(wrong)} of {len(findings)}\n" + "\n".join(wrong[:10])


def named(findings: Sequence[Finding]) -> None:
    """An error about damage names the file, its database or what is the same for people."""
    for finding in findings:
        for question, error in finding.refused.items():
            asked_for_less = error["code"] == "INVALID_INPUT" and finding.damage.path.endswith(("durable_end", ".json"))
            if asked_for_less or error["code"] in FOUND_WITHOUT_NAME:
                continue
            words = [part for path in (finding.damage.path, finding.damage.other) if path for part in names(path)]
            assert any(word in error["message"] for word in words), f"{finding.damage}: {question}: {error['message']}"


def names(path: str) -> list[str]:
    """What a message about this file may call it."""
    directory, _, file = path.rpartition("/")
    if "secondary" in path or path.startswith("blobs"):
        return [file]
    if path.startswith("log/"):
        return [directory]
    if path == "keys.sqlite":
        return ["keys.sqlite", "key page", "key store"]
    return [directory or file, file]


def harmless(sound: Sound, damage: Damage) -> bool:
    """What may go unnoticed although its kind is looked at, and the content is the same."""
    raw = (sound.now / damage.path).read_bytes()
    if damage.manner != "flip":
        return damage.manner == "cut" and damage.path.startswith("projections") and "MANIFEST" in damage.path
    if damage.path.endswith(".sst"):
        return True  # a filter: RocksDB reads the block instead; `found_most` sees to the others
    if "MANIFEST" in damage.path:
        return damage.at // 8 >= len(raw) - 40  # it may look like a torn end, of an edit that changes nothing
    # The end of a line, or a digit of the key in the other case.
    return damage.at // 8 >= len(raw.strip()) or (damage.path == "master.key" and damage.at % 8 == 5)


def found_most(kind: Kind, findings: Sequence[Finding]) -> None:
    """Of the flips that must be found, nearly all were refused."""
    flips = [finding for finding in findings if finding.damage.manner == "flip"]
    if "flip" in kind.found:
        assert sum(bool(finding.refused) for finding in flips) >= len(flips) * 0.8, kind.name
