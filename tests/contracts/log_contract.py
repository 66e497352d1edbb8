"""What every log must do, whatever it is made of: the docstrings of `atomlog.kernel.ports.Log`, as tests.

An implementation joins by a subclass of `LogContract` with a fixture `world` that makes a `LogWorld`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import Log, LogRecord
from atomlog.schemas.record import Malformed, Record

PARTITIONS = 3
LOG_ID = bytes(range(100, 116))
OWNER = bytes(range(16))
MUCH = 1 << 30
SHORT_S, LONG_S = 0.02, 60.0  # a wait that must time out, one that must not


class LogWorld(Protocol):
    """A log that the test may open as several processes would."""

    carries_malformed: bool

    async def open(self) -> Log:
        """A handle for writing and reading, nothing acquired. Closed by `close`."""
        ...

    async def open_reader(self) -> Log:
        """A handle of a process that only reads."""
        ...

    async def put_malformed(self, partition: int, record: Malformed) -> None:
        """Append what no writer of ours writes, with its term, owner and kind; only where `carries_malformed`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Case:
    world: LogWorld

    def run(self, body: Callable[[LogWorld], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            try:
                await body(self.world)
            finally:
                await self.world.close()

        asyncio.run(whole())


def record(n: int, *, size: int = 40, kind: str = "Batch") -> Record:
    """A record that tells which it is. Its schema and chain are arbitrary: no log looks at them."""
    value = n.to_bytes(8, "big").ljust(size, b"v")
    return Record(rule=1, kind=kind, term=3, owner=OWNER, seq=n, schema=b"8 bytes!", chain=bytes(16), value=value)


def records(*numbers: int) -> list[Record]:
    return [record(n) for n in numbers]


async def read_all(log: Log, partition: int, position: int = 0, *, bytes_max: int = MUCH) -> list[LogRecord]:
    found: list[LogRecord] = []
    while part := await log.read(partition, position, bytes_max=bytes_max):
        found += part
        position += len(part)
    return found


def entries(first: int, stored: Sequence[Record]) -> list[LogRecord]:
    return [LogRecord(position=first + n, record=one) for n, one in enumerate(stored)]


async def writer(world: LogWorld, *partitions: int) -> Log:
    log = await world.open()
    for partition in partitions or (0,):
        await log.acquire(partition)
    return log


class LogContract:
    """Inherit, and give a fixture `world`."""

    @pytest.fixture
    def case(self, world: LogWorld) -> Case:
        return Case(world)

    def test_an_empty_log_ends_at_0_and_reads_as_nothing(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            for log in (await world.open(), await world.open_reader()):
                for partition in range(PARTITIONS):
                    assert await log.end(partition) == 0
                    assert not await log.read(partition, 0, bytes_max=MUCH)

        case.run(body)

    def test_a_log_says_which_it_is(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await world.open()
            assert (log.log_id, log.partitions) == (LOG_ID, PARTITIONS)
            assert isinstance(log.exclusive, bool)

        case.run(body)

    def test_what_was_appended_is_read_back_in_order_and_unchanged(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            stored = [record(n, size=8 + 37 * n, kind=kind) for n, kind in enumerate(("Claim", "Batch", "Fence") * 4)]
            await log.append(0, stored[:1])
            await log.append(0, stored[1:5])
            await log.append(0, stored[5:])
            assert await read_all(log, 0) == entries(0, stored)
            assert await read_all(await world.open_reader(), 0) == entries(0, stored)

        case.run(body)

    def test_every_field_of_a_record_survives(self, case: Case) -> None:
        edge = Record(
            rule=65_535,
            kind="K" * 32,
            term=2**64 - 1,
            owner=bytes(range(240, 256)),
            seq=2**64 - 1,
            schema=b"\xff\x00" * 4,
            chain=b"\x00\xa7AG\x01" + bytes(11),
            value=b"",
        )

        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.append(0, [edge, record(1)])
            assert await read_all(await world.open_reader(), 0) == entries(0, [edge, record(1)])

        case.run(body)

    def test_an_append_has_ended_when_its_records_are_durable(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            for count in range(1, 6):
                await log.append(0, records(*range(count)))
                assert await log.end(0) == await reader.end(0) == sum(range(1, count + 1))

        case.run(body)

    def test_appending_nothing_changes_nothing(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.append(0, [])
            assert await log.end(0) == 0

        case.run(body)

    def test_positions_have_no_gap_whatever_the_groups_and_reads(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            sizes = (1, 7, 2, 40, 1, 1, 13)
            for size in sizes:
                await log.append(0, [record(n, size=200) for n in range(size)])
            for bytes_max in (1, 500, 3_000, MUCH):
                for handle in (log, reader):
                    found = await read_all(handle, 0, bytes_max=bytes_max)
                    assert [entry.position for entry in found] == list(range(sum(sizes)))

        case.run(body)

    def test_a_read_may_start_at_any_record(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            stored = records(*range(30))
            for at in range(0, 30, 5):
                await log.append(0, stored[at : at + 5])
            for position in range(30):
                for handle in (log, reader):
                    assert await read_all(handle, 0, position) == entries(position, stored[position:])

        case.run(body)

    def test_bytes_max_limits_a_read_but_gives_at_least_one_record(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            await log.append(0, [record(n, size=10_000) for n in range(20)])
            for handle in (log, reader):
                assert len(await handle.read(0, 3, bytes_max=1)) == 1
                assert 1 <= len(await handle.read(0, 3, bytes_max=35_000)) <= 3
                assert len(await read_all(handle, 0, bytes_max=35_000)) == 20

        case.run(body)

    def test_a_read_at_the_end_gives_nothing(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            await log.append(0, records(0, 1))
            assert not await log.read(0, 2, bytes_max=MUCH)
            assert not await reader.read(0, 2, bytes_max=MUCH)

        case.run(body)

    def test_a_read_after_the_end_is_a_diverged_log(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            await log.append(0, records(0, 1))
            for handle in (log, reader):
                with pytest.raises(AtomlogError) as raised:
                    await handle.read(0, 3, bytes_max=MUCH)
                assert raised.value.code == "LOG_DIVERGED"

        case.run(body)

    def test_partitions_know_nothing_of_each_other(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world, 0, 1, 2)
            await asyncio.gather(
                log.append(0, records(1, 2)), log.append(1, records(10)), log.append(2, records(20, 21, 22))
            )
            await log.append(1, records(11))
            assert await read_all(log, 0) == entries(0, records(1, 2))
            assert await read_all(log, 1) == entries(0, records(10, 11))
            assert await read_all(log, 2) == entries(0, records(20, 21, 22))

        case.run(body)

    def test_a_partition_that_the_log_does_not_have_is_refused(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await world.open()
            for partition in (-1, PARTITIONS):
                with pytest.raises(AtomlogError) as raised:
                    await log.end(partition)
                assert raised.value.code == "INVALID_INPUT"

        case.run(body)

    def test_wait_says_at_once_that_a_record_is_there(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            await log.append(0, records(0, 1))
            for handle in (log, reader):
                assert await handle.wait(0, 0, 0)
                assert await handle.wait(0, 1, 0)
                assert not await handle.wait(0, 2, 0)

        case.run(body)

    def test_wait_gives_up_after_its_timeout(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            for handle in (log, reader):
                assert not await handle.wait(0, 0, SHORT_S)

        case.run(body)

    def test_wait_ends_when_the_record_becomes_durable_and_not_before(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            waits = [asyncio.create_task(handle.wait(0, 1, LONG_S)) for handle in (log, log, reader)]
            await asyncio.sleep(0)
            await log.append(0, records(0))  # not yet the one that is waited for
            await asyncio.sleep(0)
            assert not any(wait.done() for wait in waits)
            await log.append(0, records(1))
            assert await asyncio.gather(*waits) == [True] * 3

        case.run(body)

    def test_readers_and_a_writer_do_not_disturb_each_other(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            stored = [record(n, size=300) for n in range(240)]

            async def follow(handle: Log, bytes_max: int) -> list[LogRecord]:
                found: list[LogRecord] = []
                while len(found) < len(stored) and await handle.wait(0, len(found), LONG_S):
                    found += await handle.read(0, len(found), bytes_max=bytes_max)
                return found

            handles = [log, log, await world.open_reader(), await world.open_reader()]
            followers = [
                asyncio.create_task(follow(handle, bytes_max))
                for handle, bytes_max in zip(handles, (MUCH, 1_000, MUCH, 1_000), strict=True)
            ]
            for at in range(0, len(stored), 6):
                await log.append(0, stored[at : at + 6])
            assert await asyncio.gather(*followers) == [entries(0, stored)] * 4

        case.run(body)

    def test_a_record_of_many_megabytes_is_carried(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            stored = [record(0), record(1, size=9_000_000), record(2)]
            await log.append(0, stored[:1])
            await log.append(0, stored[1:])
            for handle in (log, reader):
                assert await read_all(handle, 0, bytes_max=1) == entries(0, stored)
                assert await read_all(handle, 0) == entries(0, stored)

        case.run(body)

    def test_after_renew_appending_goes_on(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.append(0, records(0))
            await log.renew(0)
            await log.append(0, records(1))
            assert await read_all(log, 0) == entries(0, records(0, 1))

        case.run(body)

    def test_a_cancelled_append_is_there_whole_or_not_at_all_and_appending_goes_on(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.append(0, records(0))
            for turns in range(8):
                append = asyncio.create_task(log.append(0, records(*range(10, 15))))
                for _ in range(turns):
                    await asyncio.sleep(0)
                append.cancel()
                await asyncio.gather(append, return_exceptions=True)
                await log.renew(0)
                await log.append(0, records(99))
            found = [entry.record.value[7] for entry in await read_all(log, 0) if isinstance(entry.record, Record)]
            whole = bytes(range(10, 15))
            assert bytes(found).replace(whole, b"").strip(b"\x63") == b"\x00"
            assert found.count(99) == 8

        case.run(body)

    def test_closing_and_opening_again_keeps_everything(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world, 0, 1)
            await log.append(0, records(0, 1, 2))
            await log.append(1, records(7))
            await log.close()
            log = await writer(world, 0, 1)
            assert (await log.end(0), await log.end(1)) == (3, 1)
            await log.append(0, records(3))
            await log.close()
            reader = await world.open_reader()
            assert await read_all(reader, 0) == entries(0, records(0, 1, 2, 3))
            assert await read_all(reader, 1) == entries(0, records(7))

        case.run(body)

    def test_where_others_may_append_groups_of_two_writers_interleave_whole(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            one, other = await writer(world), await world.open()
            if one.exclusive:
                with pytest.raises(AtomlogError) as raised:
                    await other.acquire(0)
                assert raised.value.code in ("NOT_OWNER", "STORE_LOCKED")
                return
            await other.acquire(0)
            for turn in range(6):
                await asyncio.gather(
                    one.append(0, records(*range(10 * turn, 10 * turn + 4))),
                    other.append(0, records(*range(100 + 10 * turn, 100 + 10 * turn + 4))),
                )
            found = [entry.record for entry in await read_all(one, 0)]
            assert found == [entry.record for entry in await read_all(other, 0)]
            numbers = [entry.seq for entry in found if isinstance(entry, Record)]
            groups = [numbers[at : at + 4] for at in range(0, len(numbers), 4)]
            assert sorted(groups) == [list(range(at, at + 4)) for at in (*range(0, 60, 10), *range(100, 160, 10))]

        case.run(body)

    def test_a_producer_that_was_given_up_does_no_harm_to_who_else_appends(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            if log.exclusive:
                return
            other = await writer(world)
            await log.append(0, records(0))
            await log.renew(0)
            await other.append(0, records(1))
            await log.append(0, records(2))
            assert await read_all(other, 0) == entries(0, records(0, 1, 2))

        case.run(body)

    def test_who_waits_is_told_when_the_log_is_closed(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            waiting = asyncio.create_task(log.wait(0, 0, LONG_S))
            await asyncio.sleep(0)
            await log.close()
            waiting.cancel()  # a log may also leave it to who waits
            found = await asyncio.gather(waiting, return_exceptions=True)
            assert found[0] is not True

        case.run(body)

    def test_many_ask_for_the_end_and_each_is_told_of_what_was_durable_before(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log, reader = await writer(world), await world.open_reader()
            for count in range(1, 9):
                early = [asyncio.create_task(handle.end(0)) for handle in (log, reader) for _ in range(4)]
                await log.append(0, records(count))
                late = [asyncio.create_task(handle.end(0)) for handle in (log, reader) for _ in range(4)]
                assert all(end in (count - 1, count) for end in await asyncio.gather(*early))
                assert set(await asyncio.gather(*late)) == {count}

        case.run(body)

    def test_acquiring_twice_is_acquiring(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.append(0, records(0))
            await log.acquire(0)
            await log.append(0, records(1))
            assert await log.end(0) == 2

        case.run(body)

    def test_a_closed_log_refuses_and_closes_again(self, case: Case) -> None:
        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.close()
            await log.close()
            for call in (log.append(0, records(0)), log.end(0), log.read(0, 0, bytes_max=1), log.acquire(0)):
                with pytest.raises(AtomlogError):
                    await call

        case.run(body)

    def test_a_malformed_record_is_surfaced_where_the_log_can_carry_one(self, case: Case) -> None:
        odd = Malformed(reason="headers are ()", term=3, owner=OWNER, kind="Batch")

        async def body(world: LogWorld) -> None:
            log = await writer(world)
            await log.append(0, records(0))
            if not world.carries_malformed:
                with pytest.raises(ValueError):  # it lets no writer write what it could not read back
                    await log.append(0, [record(1, kind="K" * 33)])
                assert await log.end(0) == 1
                return
            await world.put_malformed(0, odd)
            await log.append(0, records(1))
            first, found, last = [entry.record for entry in await read_all(log, 0)]
            assert (first, last) == (record(0), record(1))
            assert isinstance(found, Malformed)
            assert (found.term, found.owner, found.kind) == (odd.term, odd.owner, odd.kind)

        case.run(body)
