"""The checks of the write path can fail: each planted fault makes the test that is named for it fail.

A mutant is the kernel with one piece of text replaced. Its test runs in a process of its own, with the changed kernel
before the real one on the path.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/kernel/owner/test_write_path.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """What is taken out, where, and which test says so."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str


MUTANTS = (
    Mutant(
        name="acknowledges what it appended without reading it back",
        file="committer.py",
        old="""                await self._world.log.append(self._partition, group.records)
""",
        new="""                await self._world.log.append(self._partition, group.records)
                for record in group.records:
                    if record.seq in group.writes:
                        done, read = group.writes[record.seq], EffectiveRecord(position=0, record=record, chain=b"")
                        done.ask.accept(write_result(done.ask.prepared.request, 0, done.batch, read))
""",
        caught_by="test_a_write_is_acknowledged_only_after_the_own_tail_has_read_it_back",
    ),
    Mutant(
        name="goes on appending after an append that may have failed",
        file="committer.py",
        old="""            self.latch()
            self._doubt(error)
""",
        new="""            pass
""",
        caught_by="test_nothing_is_appended_between_a_doubt_and_the_next_claim",
    ),
    Mutant(
        name="refuses without a fence",
        file="committer.py",
        old="        waits_for = group if group.records else self._unread.before(group)\n",
        new="        waits_for = None\n",
        caught_by="test_a_refusal_of_an_owner_that_lost_its_term_is_not_given_as_one",
    ),
    Mutant(
        name="waits only for the overlay entry that a refusal rests on",
        file="committer.py",
        old="if not group.records and not self._world.log.exclusive:",
        new="if False:",
        caught_by="test_a_refusal_does_not_rest_on_an_overlay_entry_before_a_successors_claim",
    ),
    Mutant(
        name="answers before the heads hold what it answers about",
        file="owner.py",
        old="        self._world.heads.apply(self._partition, records, self._tail.checkpoint, self._tail.voids)\n",
        new="",
        caught_by="test_a_refusal_on_a_shared_log_waits_for_a_fence_and_names_the_head",
    ),
    Mutant(
        name="looks for conflicts before the idempotency key",
        file="decide.py",
        old="    if accepted is not None:\n        return _duplicate(accepted, prepared)\n",
        new="",
        caught_by="test_the_same_request_twice_at_once_is_written_once",
    ),
    Mutant(
        name="keeps the content keys of void records",
        file="owner.py",
        old="        if unused:\n",
        new="        if unused and not self.term:\n",
        caught_by="test_content_keys_of_void_records_are_destroyed_at_take_over",
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel"
    shutil.copytree(ROOT / "kernel", kernel, ignore=shutil.ignore_patterns("__pycache__"))
    changed = kernel / "atomlog" / "kernel" / mutant.file
    source = changed.read_text()
    assert source.count(mutant.old) == 1, f"the mutant does not fit {mutant.file} any more"
    changed.write_text(source.replace(mutant.old, mutant.new))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS}::{mutant.caught_by}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(kernel)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert f"FAILED {TESTS}::{mutant.caught_by}" in done.stdout
