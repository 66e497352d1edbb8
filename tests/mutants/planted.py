"""Faults planted in the program, one at a time, and what must find each: a test, or a checker of the state machine."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTest:
    """`path` and name of a test that must fail."""

    path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """A checker that must find the fault by itself, in so many examples from a seed, over a log.

    `looks`: by comparing; else the program itself, which is asked by the checker, refuses to go on.
    """

    name: str
    looks: bool = True
    log: str = "memory"
    seed: int = 0
    examples: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """What is replaced by what, in which file of the repository."""

    name: str
    file: str
    old: str
    new: str
    caught_by: NamedTest | Checker


def write_path(tests: str, name: str) -> NamedTest:
    return NamedTest(path=f"tests/kernel/owner/test_{tests}.py", name=name)


KERNEL: Final = "kernel/atomlog/kernel"
PROJECTIONS: Final = "projections/atomlog/projections"

WRITE_PATH: Final = (
    Mutant(
        name="acknowledges what it appended without reading it back",
        file="kernel/atomlog/kernel/committer.py",
        old="""                await self._world.log.append(self._partition, group.records)
""",
        new="""                await self._world.log.append(self._partition, group.records)
                for record in group.records:
                    if record.seq in group.writes:
                        done, read = group.writes[record.seq], EffectiveRecord(position=0, record=record, chain=b"")
                        done.ask.accept(write_result(done.ask.prepared.request, 0, done.effects.batch, read))
""",
        caught_by=write_path("write_path", "test_a_write_is_acknowledged_only_after_the_own_tail_has_read_it_back"),
    ),
    Mutant(
        name="goes on appending after an append that may have failed",
        file="kernel/atomlog/kernel/committer.py",
        old="""            self.latch()
            self._doubt(error)
""",
        new="""            pass
""",
        caught_by=write_path("write_path", "test_nothing_is_appended_between_a_doubt_and_the_next_claim"),
    ),
    Mutant(
        name="refuses without a fence",
        file="kernel/atomlog/kernel/committer.py",
        old="        waits_for = group if group.records else self._unread.before(group)\n",
        new="        waits_for = None\n",
        caught_by=write_path("write_path", "test_a_refusal_of_an_owner_that_lost_its_term_is_not_given_as_one"),
    ),
    Mutant(
        name="waits only for the overlay entry that a refusal rests on",
        file="kernel/atomlog/kernel/committer.py",
        old="if not group.records and not self._world.log.exclusive:",
        new="if False:",
        caught_by=write_path(
            "write_path", "test_a_refusal_does_not_rest_on_an_overlay_entry_before_a_successors_claim"
        ),
    ),
    Mutant(
        name="answers before the heads hold what it answers about",
        file="kernel/atomlog/kernel/following.py",
        old="            self._world.heads.apply(self._partition, records, tail.checkpoint, tail.voids, self._known)\n",
        new="",
        caught_by=write_path("write_path", "test_a_refusal_on_a_shared_log_waits_for_a_fence_and_names_the_head"),
    ),
    Mutant(
        name="looks for conflicts before the idempotency key",
        file="kernel/atomlog/kernel/decide.py",
        old="    if accepted is not None:\n        return _duplicate(accepted, prepared)\n",
        new="",
        caught_by=write_path("write_path", "test_the_same_request_twice_at_once_is_written_once"),
    ),
    Mutant(
        name="keeps the content keys of void records",
        file="kernel/atomlog/kernel/claim.py",
        old="in parts_of(self._allocator.unused(used)):\n",
        new="in parts_of({}):\n",
        caught_by=write_path("write_path", "test_content_keys_of_void_records_are_destroyed_at_take_over"),
    ),
    Mutant(
        name="believes its own Claim without looking who holds the term",
        file="kernel/atomlog/kernel/claim.py",
        old="        if not self._holds():\n",
        new="        if False:\n",
        caught_by=write_path("ownership", "test_a_partition_lost_while_keys_are_taken_is_not_claimed"),
    ),
    Mutant(
        name="takes back by itself what another one claimed",
        file="kernel/atomlog/kernel/claim.py",
        old="        if (not over_others and state.owner",
        new="        if (False and state.owner",
        caught_by=write_path("ownership", "test_an_owner_in_doubt_does_not_claim_over_a_successor"),
    ),
    Mutant(
        name="decides a group although a doubt came while keys were made",
        file="kernel/atomlog/kernel/committer.py",
        old=" or not self._open:\n            return\n",
        new=":\n            return\n",
        caught_by=write_path("ownership", "test_a_doubt_while_keys_are_made_leaves_no_record_of_the_old_term"),
    ),
    Mutant(
        name="writes under a digest key of a term that has ended",
        file="kernel/atomlog/kernel/committer.py",
        old="        if prepared.digest_key_id != self._digest_keys.find(prepared.request.space):\n",
        new="        if False:\n",
        caught_by=write_path("ownership", "test_a_new_space_keeps_its_digest_key_although_its_first_write_met_a_doubt"),
    ),
    Mutant(
        name="says never without having read the log to its end",
        file="kernel/atomlog/kernel/owner.py",
        old='        if self._phase == "standby" and self._log.exclusive:\n',
        new="        if False:\n",
        caught_by=write_path("ownership", "test_never_is_not_said_while_the_log_holds_what_is_not_applied"),
    ),
    Mutant(
        name="goes on behind records that the heads did not take",
        file="kernel/atomlog/kernel/following.py",
        old="            tail.checkpoint, tail.voids = before, voids",
        new="            pass",
        caught_by=write_path("failures", "test_heads_that_cannot_be_written_for_a_moment_miss_no_record"),
    ),
    Mutant(
        name="appends a batch before its blob is durable",
        file="kernel/atomlog/kernel/committer.py",
        old="                await self._put_blobs(group)\n",
        new="                self._spawn(self._put_blobs(group))\n",
        caught_by=write_path("failures", "test_a_batch_is_appended_only_when_its_blob_is_durable"),
    ),
)

STATE_MACHINE: Final = (
    Mutant(
        name="writes a batch twice when its key comes again",
        file=f"{KERNEL}/decide.py",
        old="    if accepted is not None:\n        return _duplicate(accepted, prepared)\n",
        new="",
        caught_by=Checker(name="acknowledged_exactly_once"),
    ),
    Mutant(
        name="leaves the last change of a batch out",
        file="schemas/atomlog/schemas/batch.py",
        old="for revision in batch.revisions])",
        new="for revision in batch.revisions[: max(1, len(batch.revisions) - 1)]])",
        caught_by=Checker(name="no_half_batch"),
    ),
    Mutant(
        name="forgets the order key of a membership",
        file=f"{KERNEL}/resolve.py",
        old="order_key=slot.order_key",
        new='order_key=b""',
        caught_by=Checker(name="no_half_batch"),
    ),
    Mutant(
        name="takes a request that comes again for another one",
        file=f"{KERNEL}/results.py",
        old="        if same and accepted.digest != digests.request_digest:\n",
        new="        if same:\n",
        caught_by=Checker(name="every_batch_was_sent"),
    ),
    Mutant(
        name="gives the first result to another body under the same key",
        file=f"{KERNEL}/decide.py",
        old="    if accepted.digest == prepared.request_digest:\n",
        new="    if True:\n",
        caught_by=Checker(name="same_key_same_answer"),
    ),
    Mutant(
        name="links a revision to nothing",
        file=f"{KERNEL}/decide.py",
        old="previous=None if clear is None else clear.revision_id",
        new="previous=None if clear is None or clear.retired else clear.revision_id",
        caught_by=Checker(name="single_chain_per_atom"),
    ),
    Mutant(
        name="lets a write through that expects an older head",
        file=f"{KERNEL}/guards.py",
        old="        if expected != current:\n",
        new="        if expected is None and current is not None:\n",
        caught_by=Checker(name="one_winner_per_head"),
    ),
    Mutant(
        name="looks at no precondition",
        file=f"{KERNEL}/decide.py",
        old="check_heads(case) + check_preconditions(case)",
        new="check_heads(case)",
        caught_by=Checker(name="one_winner_per_head"),
    ),
    Mutant(
        name="refuses for a change that the caller has seen",
        file=f"{KERNEL}/guards.py",
        old="    if changed <= since:\n",
        new="    if changed < since:\n",
        caught_by=Checker(name="refusals_were_right"),
    ),
    Mutant(
        name="says never to what was accepted",
        file=f"{KERNEL}/results.py",
        old="        if digests is None or accepted is None:\n",
        new="        if digests is None or accepted is None or not same:\n",
        caught_by=Checker(name="never_is_never", log="embedded", seed=1),
    ),
    Mutant(
        name="gives batches of one second the same time",
        file=f"{KERNEL}/committer.py",
        old="recorded_at_us = max(now_us, self._term.last_us + 1)",
        new="recorded_at_us = now_us - now_us % 1_000_000",
        caught_by=Checker(name="positions_are_monotone"),
    ),
    Mutant(
        name="does not count void records",
        file=f"{KERNEL}/tail.py",
        old="            self.voids[verdict.reason] += 1\n",
        new="",
        caught_by=Checker(name="records_tile_the_log"),
    ),
    Mutant(
        name="stands still at a void record",
        file=f"{KERNEL}/tail.py",
        old="            self.checkpoint = Checkpoint(position=place.position + 1, state=place.state)\n",
        new="",
        caught_by=Checker(name="everything_is_answered", looks=False),
    ),
    Mutant(
        name="forgets who waits for a proof of its refusal",
        file=f"{KERNEL}/committer.py",
        old="            for ask in group.refused:\n                self._decide_refused(ask)\n",
        new="""            for ask in group.refused:
                if ask.question:
                    self._decide_refused(ask)
""",
        caught_by=Checker(name="everything_is_answered"),
    ),
    Mutant(
        name="destroys keys that effective records use",
        file=f"{KERNEL}/claim.py",
        old="parts_of(self._allocator.unused(used))",
        new="parts_of(self._allocator.unused({}))",
        caught_by=Checker(name="reads_are_exact", looks=False),
    ),
    Mutant(
        name="leaves a torn tail where it is",
        file=f"{KERNEL}/log/recovery.py",
        old="            segment.truncate(spot.offset)\n",
        new="            pass\n",
        caught_by=NamedTest(
            path="tests/kernel/log/test_recovery.py", name="test_a_torn_tail_of_every_length_is_cut_whole"
        ),
    ),
    Mutant(
        name="writes on into a segment that was taken away",
        file=f"{KERNEL}/log/ownership.py",
        old="    if not file.is_at(path):\n",
        new="    if False:\n",
        caught_by=NamedTest(
            path="tests/kernel/log/test_ownership.py",
            name="test_an_owner_whose_segment_is_taken_away_writes_nothing_more",
        ),
    ),
    Mutant(
        name="acknowledges what went to a segment that was taken away meanwhile",
        file=f"{KERNEL}/log/writer.py",
        old="            self._check_in_place()  # nobody",
        new="            pass  # nobody",
        caught_by=NamedTest(
            path="tests/kernel/log/test_ownership.py",
            name="test_a_group_that_went_to_a_segment_taken_away_meanwhile_is_not_acknowledged",
        ),
    ),
    Mutant(
        name="reads a newer generation that is behind",
        file="consumers/atomlog/consumers/secondary.py",
        old="        if is_behind(reached, wanted):\n",
        new="        if False:\n",
        caught_by=NamedTest(
            path="tests/consumers/test_secondary.py",
            name="test_a_newer_generation_is_not_read_before_it_has_come_as_far",
        ),
    ),
    Mutant(
        name="goes on in another history as long as every record of it is void",
        file="consumers/atomlog/consumers/applier.py",
        old="        return await self._checked()\n",
        new="        return True\n",
        caught_by=NamedTest(
            path="tests/consumers/test_other_history.py",
            name="test_a_longer_history_in_which_every_record_is_void_is_told_apart",
        ),
    ),
    Mutant(
        name="shows a row without the atom of another partition that it refers to",
        file="projections/atomlog/projections/read/reader.py",
        old="            if len(chosen.positions) < self.log.partitions and not chosen.unreachable:\n",
        new="            if False:\n",
        caught_by=NamedTest(
            path="tests/consumers/test_partial.py",
            name="test_a_row_that_refers_to_an_atom_in_another_partition_is_not_shown_without_it",
        ),
    ),
    Mutant(
        name="syncs what a failed fsync left behind, and writes it not again",
        file=f"{KERNEL}/log/recovery.py",
        old="        if published is None or published < spot.position:\n",
        new="        if published is None:\n",
        caught_by=NamedTest(
            path="tests/statemachine/test_failed_sync.py",
            name="test_a_group_whose_sync_failed_is_durable_when_the_next_owner_has_read_it",
        ),
    ),
    Mutant(
        name="serves a group whose checksum is wrong",
        file=f"{KERNEL}/log/frames.py",
        old="    return bool(crc32c.crc32c(payload, _header_crc(buf[at:start])) == header.crc)\n",
        new="    return bool(payload)\n",
        caught_by=Checker(name="corruption_fails_closed", log="embedded"),
    ),
    Mutant(
        name="does not look whether a writer has read the same history",
        file=f"{KERNEL}/commit_rule.py",
        old="    if chain != record.chain:\n",
        new="    if False:\n",
        caught_by=NamedTest(path="tests/oracle/test_commit_rule.py", name="test_another_chain_stops_the_reader"),
    ),
    Mutant(
        name="reads a head one position too early",
        file=f"{PROJECTIONS}/ids.py",
        old='        if int.from_bytes(head[:8], "big") <= position:\n',
        new='        if int.from_bytes(head[:8], "big") <= position + 1:\n',
        caught_by=Checker(name="reads_are_exact"),
    ),
    Mutant(
        name="orders members by their ids alone",
        file=f"{PROJECTIONS}/read/members.py",
        old="    return membership.order_key, membership.member\n",
        new="    return membership.member, membership.member\n",
        caught_by=Checker(name="reads_are_exact"),
    ),
    Mutant(
        name="leaves an atom in a group that it has left",
        file=f"{PROJECTIONS}/postings/effects.py",
        old="        for group, member in stated - states:\n            self._leave(group, member, position)\n",
        new="",
        caught_by=Checker(name="reads_are_exact", seed=1),
    ),
    Mutant(
        name="keeps a relation one position too long",
        file=f"{PROJECTIONS}/relations/scan.py",
        old="        if key[born] < beyond and value[:8] > read:\n",
        new="        if key[born] < beyond and value[:8] >= read:\n",
        caught_by=Checker(name="reads_are_exact", seed=1),
    ),
    Mutant(
        name="begins a page with the last row of the one before",
        file=f"{PROJECTIONS}/relations/scan.py",
        old="        if after is not None and place <= after:\n",
        new="        if after is not None and place < after:\n",
        caught_by=Checker(name="pages_are_the_whole_once"),
    ),
    Mutant(
        name="renders a receipt from the newest revision",
        file=f"{PROJECTIONS}/read/replay.py",
        old="    found = index.revision(row.revision)\n",
        new="    found = index.head(row.atom, {0: 2**40})\n",
        caught_by=Checker(name="receipts_replay_to_the_same_bytes", looks=False),
    ),
    Mutant(
        name="gives the rows of a receipt in another order",
        file=f"{PROJECTIONS}/read/replay.py",
        old="    return tuple(row for row, _ in rendered)\n",
        new="    return tuple(row for row, _ in reversed(rendered))\n",
        caught_by=Checker(name="receipts_replay_to_the_same_bytes"),
    ),
    Mutant(
        name="writes the checkpoint apart from the rows",
        file=f"{PROJECTIONS}/base.py",
        old="        staged.put(STANDING + u16(partition), head + after.to_bytes())\n",
        new="        staged.commit()\n        staged = Staged(self.kv)\n"
        "        staged.put(STANDING + u16(partition), head + after.to_bytes())\n",
        caught_by=Checker(name="resume_equals_uninterrupted", looks=False, seed=1),
    ),
    Mutant(
        name="forgets what it applies first after it was opened",
        file=f"{PROJECTIONS}/base.py",
        old="            self._effects_of_all(partition, effective, after, staged)\n",
        new="""            first, self._went_on = not getattr(self, "_went_on", False), True
            forgets = first and standing.checkpoint.position > 0 and self.name != "ids"
            self._effects_of_all(partition, [] if forgets else effective, after, staged)
""",
        caught_by=Checker(name="resume_equals_uninterrupted"),
    ),
    Mutant(
        name="keeps the last time only of what it applies at once",
        file=f"{PROJECTIONS}/ids.py",
        old="            rows.append((TIME + tag",
        new="            if position == batches[-1][0]:\n                rows.append((TIME + tag",
        caught_by=Checker(name="digest_equals_clean_rebuild"),
    ),
    Mutant(
        name="counts the rows of the last write only",
        file=f"{PROJECTIONS}/base.py",
        old="standing.rows + staged.rows",
        new="staged.rows",
        caught_by=Checker(name="digest_equals_clean_rebuild", looks=False),
    ),
    Mutant(
        name="skips a record when it goes on",
        file=f"{PROJECTIONS}/base.py",
        old="Checkpoint.from_bytes(raw[_STANDING.size :])",
        new="Checkpoint(position=Checkpoint.from_bytes(raw[_STANDING.size :]).position + 1,"
        " state=Checkpoint.from_bytes(raw[_STANDING.size :]).state)",
        caught_by=Checker(name="resume_equals_uninterrupted", looks=False),
    ),
)
MUTANTS: Final = (*WRITE_PATH, *STATE_MACHINE)
