"""The hand-built logs of these tests are logs: the commit rule counts them and the decoders read them."""

from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.tail import Tail
from atomlog.schemas.content import decode_content
from atomlog.schemas.revision import decode_clear, sealed_of
from tests.support.batches import LOG_ID, LogBuilder, atom_id, create, member, retire, revise, slot


def test_a_built_log_is_read_like_any_other() -> None:
    log = LogBuilder()
    log.batch("notes", [create("tea"), create("cup"), member("m", group="tea", of="cup", order_key=b"1")])
    log.void()
    log.fence()
    log.batch("notes", [revise("cup", value={"text": "blue"}, slots=[slot("of", "tea")]), retire("m")])
    log.claim()

    tail = Tail(log=None, genesis=Genesis(log_id=LOG_ID, partition=0, partitions=1))  # type: ignore[arg-type]
    for log_record, checkpoint in zip(log.log_records, log.checkpoints[1:], strict=True):
        tail.step(log_record)
        assert tail.checkpoint == checkpoint
    assert [record.kind for record in log.records] == ["Claim", "Batch", "Fence", "Batch", "Claim"]
    assert dict(tail.voids) == {"stale_term": 1}
    assert log.checkpoint.position == log.end == 6


def test_a_built_revision_carries_over_what_it_does_not_change() -> None:
    log = LogBuilder()
    first = log.batch("notes", [create("a", schema="statement", slots=[slot("subject", "b")], value="old")])
    second = log.batch("notes", [revise("a", value="new")])
    created, _ = decode_clear(first.batch().revisions[0])
    revised, at = decode_clear(second.batch().revisions[0])
    assert (revised.atom_id, revised.previous) == (atom_id("a"), created.revision_id)
    assert (revised.schema, revised.policy, revised.slots) == ("statement", "notes", created.slots)
    assert revised.recorded_at_us > created.recorded_at_us
    assert decode_content(sealed_of(second.batch().revisions[0], at)).value == b'"new"'
    assert len({*(record.batch().request_key for record in (first, second))}) == 2
