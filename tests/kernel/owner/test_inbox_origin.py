"""A request that came over an inbox: its record stands in the batch; carried out again it is the same, no repeat."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.model import WriteRequest
from atomlog.kernel.requests import parse_write
from atomlog.schemas import codec
from atomlog.schemas.batch import Inbox, decode_batch
from atomlog.schemas.record import Record
from tests.kernel.owner.support import claimed
from tests.support.kernel_world import batch, create, memory_bench, run

ALICE = "alice"


def at(offset: int, raw: dict[str, Any], rights: frozenset[str] | None = None) -> WriteRequest:
    return replace(parse_write(raw), inbox=Inbox(topic="ab" * 16, partition=3, offset=offset), rights=rights)


def test_the_batch_names_the_record_that_asked_for_it_and_who_may_write_there() -> None:
    async def scenario() -> None:
        bench = memory_bench()
        owner = await claimed(bench)
        done = await owner.write(at(7, batch("k", create("a"))), ALICE)
        (found,) = await bench.log.read(0, done.receipt.position, bytes_max=1)
        assert isinstance(found.record, Record)
        written = decode_batch(codec.unwrap(found.record.value)[1])
        assert (written.principal, written.inbox) == (ALICE, Inbox(topic="ab" * 16, partition=3, offset=7))
        await owner.close()

    run(scenario())


def test_the_same_record_carried_out_again_has_the_same_result_and_another_record_is_a_repeat() -> None:
    async def scenario() -> None:
        owner = await claimed(memory_bench())
        first = await owner.write(at(7, batch("k", create("a"))), ALICE)
        again = await owner.write(at(7, batch("k", create("a"))), ALICE)
        other = await owner.write(at(8, batch("k", create("a"))), ALICE)
        direct = await owner.write(parse_write(batch("k", create("a"))), ALICE)
        assert again == first
        assert (first.replayed, other.replayed, direct.replayed) == (False, True, True)
        assert {one.receipt for one in (first, again, other, direct)} == {first.receipt}
        await owner.close()

    run(scenario())


def test_of_records_that_arrive_together_only_another_one_is_a_repeat() -> None:
    async def scenario() -> None:
        owner = await claimed(memory_bench())
        raw = batch("k", create("a"))
        asked = [at(7, raw), at(7, raw), at(8, raw)]
        done = await asyncio.gather(*(owner.write(one, ALICE) for one in asked))
        assert [one.replayed for one in done] == [False, False, True]
        await owner.close()

    run(scenario())


def test_the_rights_are_those_of_the_inbox_not_of_the_process() -> None:
    async def scenario() -> None:
        owner = await claimed(memory_bench())
        said = batch("k", create("a", provenance={"kind": "source"}))
        with pytest.raises(AtomlogError, match="needs the right mark-source"):
            await owner.write(at(1, said, frozenset({"write"})), ALICE)
        await owner.write(at(2, said, frozenset({"write", "mark-source"})), ALICE)
        await owner.close()

    run(scenario())


def test_two_principals_may_use_the_same_key() -> None:
    async def scenario() -> None:
        owner = await claimed(memory_bench())
        one = await owner.write(at(1, batch("k", create("a"))), ALICE)
        two = await owner.write(at(1, batch("k", create("b"))), "bob")
        assert one.receipt.position != two.receipt.position
        await owner.close()

    run(scenario())
