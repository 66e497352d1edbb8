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
TESTS = "tests/kernel/owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """What is taken out, where, and which test says so, of `test_<tests>.py`."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str
    tests: str = "write_path"


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
                        done.ask.accept(write_result(done.ask.prepared.request, 0, done.effects.batch, read))
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
        file="following.py",
        old="            self._world.heads.apply(self._partition, records, tail.checkpoint, tail.voids, self._known)\n",
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
        file="claim.py",
        old="        if unused:\n",
        new="        if unused and not self._term.owner:\n",
        caught_by="test_content_keys_of_void_records_are_destroyed_at_take_over",
    ),
    Mutant(
        name="believes its own Claim without looking who holds the term",
        file="claim.py",
        old="        if not self._holds():\n",
        new="        if False:\n",
        tests="ownership",
        caught_by="test_a_partition_lost_while_keys_are_taken_is_not_claimed",
    ),
    Mutant(
        name="takes back by itself what another one claimed",
        file="claim.py",
        old="        if not over_others and self._following",
        new="        if False and self._following",
        tests="ownership",
        caught_by="test_an_owner_in_doubt_does_not_claim_over_a_successor",
    ),
    Mutant(
        name="decides a group although a doubt came while keys were made",
        file="committer.py",
        old=" or not self._open:\n            return\n",
        new=":\n            return\n",
        tests="ownership",
        caught_by="test_a_doubt_while_keys_are_made_leaves_no_record_of_the_old_term",
    ),
    Mutant(
        name="writes under a digest key of a term that has ended",
        file="committer.py",
        old="        if prepared.digest_key_id != self._digest_keys.find(prepared.request.space):\n",
        new="        if False:\n",
        tests="ownership",
        caught_by="test_a_new_space_keeps_its_digest_key_although_its_first_write_met_a_doubt",
    ),
    Mutant(
        name="says never without having read the log to its end",
        file="owner.py",
        old='        if self._phase == "standby" and self._log.exclusive:\n',
        new="        if False:\n",
        tests="ownership",
        caught_by="test_never_is_not_said_while_the_log_holds_what_is_not_applied",
    ),
    Mutant(
        name="goes on behind records that the heads did not take",
        file="following.py",
        old="            tail.checkpoint, tail.voids = before, voids",
        new="            pass",
        tests="failures",
        caught_by="test_heads_that_cannot_be_written_for_a_moment_miss_no_record",
    ),
    Mutant(
        name="appends a batch before its blob is durable",
        file="committer.py",
        old="                await self._put_blobs(group)\n",
        new="                self._spawn(self._put_blobs(group))\n",
        tests="failures",
        caught_by="test_a_batch_is_appended_only_when_its_blob_is_durable",
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
    named = f"{TESTS}/test_{mutant.tests}.py::{mutant.caught_by}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", named],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(kernel)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert f"FAILED {named}" in done.stdout
