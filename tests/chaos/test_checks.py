"""Each check of a run finds what it is for: an honest log is broken in one place."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.ports import KeyPage
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas import record as wire
from atomlog.schemas.batch import decode_batch, encode_batch
from tests.chaos import check, clocks, networks
from tests.chaos.proxy import Proxy
from tests.chaos.reading import Seen, reads_were_true
from tests.chaos.records import Log, Raw
from tests.chaos.run import Schedule
from tests.chaos.sockets import addresses_of
from tests.oracle.brute_model import Model
from tests.processes.clients import Told
from tests.support.batches import LogBuilder, create, revise

KEY = bytes(range(1, 9)) + b"\x05"  # the sixth of a page
DATUM = slice(10, None)  # of a record's value, after the framing


@dataclass
class Honest:
    """An atom with two revisions, another one, and what everybody was told."""

    builder: LogBuilder = field(default_factory=LogBuilder)
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write("first", create("tea"), create("milk"))
        self.old_head = self.builder.heads[create("tea").atom]
        self.write("second", revise("tea"))

    def write(self, key: str, *changes: Any) -> EffectiveRecord:
        record = self.builder.batch("notes", changes)
        self.told.append(accepted(key, record))
        return record

    def refused(self, expected: bytes, head: bytes) -> None:
        batch = {"idempotency_key": "refused", "changes": [{"op": "revise", "expected": format_id(expected)}]}
        self.told.append(Told(batch=batch, result=None, refused="REVISION_CONFLICT", head=format_id(head)))

    def void_revision(self) -> bytes:
        """The id of a revision, sealed with `KEY`, that stands only in a record of a term that is over."""
        counted = self.builder.log_records[-1].record
        assert isinstance(counted, wire.Record)
        batch = decode_batch(counted.value[DATUM])
        lost = bytes(15) + b"\x09"
        revisions = tuple(one[:16] + lost + one[32:48] + KEY + one[57:] for one in batch.revisions)
        value = counted.value[:10] + encode_batch(replace(batch, revisions=revisions))
        self.builder._append(replace(counted, value=value, term=0))
        return lost

    def log(self) -> Log:
        log = Log(model=Model())
        for one in self.builder.log_records:
            assert isinstance(one.record, wire.Record)
            log.take(Raw(partition=0, position=one.position, headers=wire.headers(one.record), value=one.record.value))
        return log


class Keys:
    """A key store with one page, of which these keys are destroyed."""

    def __init__(self, destroyed: bytes) -> None:
        self._destroyed = destroyed

    async def get(self, page: bytes) -> KeyPage | None:
        if page != KEY[:8]:
            return None
        made = {"maker_partition": 0, "maker_term": 1, "maker_owner": bytes(16), "master_key_id": bytes(8)}
        return KeyPage(page=page, version=1, destroyed=self._destroyed, wrapped=b"", **made)  # type: ignore[arg-type]


def accepted(key: str, record: EffectiveRecord) -> Told:
    revisions = decode_batch(record.record.value[DATUM]).revisions
    results = [{"atom": format_id(one[:16]), "revision": format_id(one[16:32])} for one in revisions]
    result = {"results": results, "receipt": {"partition": 0, "position": record.position}}
    return Told(batch={"idempotency_key": key}, result=result, refused=None)


def test_an_honest_log_passes_every_check() -> None:
    honest = Honest()
    honest.refused(honest.old_head.revision_id, honest.builder.head("tea"))
    honest.void_revision()
    log = honest.log()
    check.acknowledged_once(log, honest.told)
    check.one_chain_per_atom(log)
    assert check.refusals_rest_on_the_log(log, honest.told) == 1
    assert asyncio.run(check.keys_of_voids_are_destroyed(log, Keys(b"\xff" * 32))) == 1  # type: ignore[arg-type]
    check.bounded_terms(log, 1)


def test_an_acknowledged_batch_that_is_not_in_the_log_is_found() -> None:
    honest = Honest()
    lost = honest.write("lost", create("sugar"))
    honest.builder.log_records.pop(lost.position)
    with pytest.raises(AssertionError, match=r"lost was accepted at .* where no batch of it is"):
        check.acknowledged_once(honest.log(), honest.told)


def test_a_batch_that_counts_twice_is_found() -> None:
    honest = Honest()
    again = honest.write("again", create("sugar"))
    honest.builder._effective("Batch", again.record.value)
    with pytest.raises(AssertionError, match="1 requests count twice"):
        check.acknowledged_once(honest.log(), honest.told)


def test_a_batch_of_which_a_half_is_in_the_log_is_found() -> None:
    honest = Honest()
    whole = honest.told[0].result
    assert whole is not None
    whole["results"].append(whole["results"][0])
    with pytest.raises(AssertionError, match="first is not whole"):
        check.acknowledged_once(honest.log(), honest.told)


def test_a_batch_that_nobody_was_told_of_is_found() -> None:
    honest = Honest()
    honest.told.pop()
    with pytest.raises(AssertionError, match="nobody was told of the batches"):
        check.acknowledged_once(honest.log(), honest.told)


def test_a_chain_that_forks_is_found() -> None:
    honest = Honest()
    honest.builder.heads[create("tea").atom] = honest.old_head
    honest.write("fork", revise("tea"))
    with pytest.raises(AssertionError, match="follows another one"):
        check.one_chain_per_atom(honest.log())


def test_a_refusal_that_names_a_void_head_is_found() -> None:
    honest = Honest()
    honest.refused(honest.old_head.revision_id, honest.void_revision())
    with pytest.raises(AssertionError, match="which never counted"):
        check.refusals_rest_on_the_log(honest.log(), honest.told)


def test_a_refusal_that_a_fresh_head_contradicts_is_found() -> None:
    honest = Honest()
    honest.refused(honest.builder.head("tea"), honest.builder.head("tea"))
    with pytest.raises(AssertionError, match="is still the head"):
        check.refusals_rest_on_the_log(honest.log(), honest.told)


def test_a_key_of_a_void_record_that_lives_is_found() -> None:
    honest = Honest()
    honest.void_revision()
    all_but_that_one = bytes([0xFF ^ 1 << KEY[8] % 8]) + b"\xff" * 31
    with pytest.raises(AssertionError, match="of a void record lives"):
        asyncio.run(check.keys_of_voids_are_destroyed(honest.log(), Keys(all_but_that_one)))  # type: ignore[arg-type]


def test_a_void_record_that_can_be_opened_is_found() -> None:
    class Opens:
        async def open(self, revision: bytes) -> bytes:
            return revision

    class Purged:
        async def open(self, revision: bytes) -> bytes:
            raise fail("PURGED", revision[:16].hex())

    honest = Honest()
    honest.void_revision()
    asyncio.run(check.voids_cannot_be_opened(honest.log(), Purged()))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="the text of a void record"):
        asyncio.run(check.voids_cannot_be_opened(honest.log(), Opens()))  # type: ignore[arg-type]


def test_a_read_that_the_log_contradicts_is_found() -> None:
    honest = Honest()
    log = honest.log()
    tea = format_id(create("tea").atom)
    first, second = format_id(honest.old_head.revision_id), format_id(honest.builder.head("tea"))

    def seen(position: int, *revisions: str) -> Seen:
        part = {"atom": tea, "receipt": "", "body": b"", "is_whole": True}
        return Seen(positions={0: position}, revisions=list(revisions), **part)  # type: ignore[arg-type]

    reads_were_true(log, [seen(1, first), seen(2, first, second)])
    for wrong in (seen(1, first, second), seen(2, first), seen(2, second, first)):
        with pytest.raises(AssertionError, match="and was read as"):
            reads_were_true(log, [wrong])


def test_a_duel_is_found() -> None:
    honest = Honest()
    for _ in range(9):
        honest.builder.claim()
    with pytest.raises(AssertionError, match="10 terms, more than 9"):
        check.bounded_terms(honest.log(), 9)


def test_replicas_that_differ_at_one_position_are_found() -> None:
    def replicas(second: str) -> Mapping[str, Mapping[str, Any]]:
        return {"a": {"ids, 0, 7": "aa", "ids, 1, 3": "bb"}, "b": {"ids, 0, 7": "aa", "ids, 1, 3": second}}

    check.replicas_agree(replicas("bb"))
    with pytest.raises(AssertionError, match="ids, 1, 3"):
        check.replicas_agree(replicas("cc"))


def test_a_schedule_is_drawn_from_its_seed_and_runs_again_from_its_file(tmp_path: Path) -> None:
    drawn = Schedule.drawn("7", 6)
    assert drawn == Schedule.drawn("7", 6) != Schedule.drawn("8", 6)
    drawn.save(tmp_path / "schedule.json")
    assert Schedule.load(tmp_path / "schedule.json") == drawn


# -- what the faults rest on


@pytest.mark.parametrize("ahead_s", [600, -600])
def test_the_wall_clock_of_a_process_can_be_off_and_its_other_clock_goes_right(ahead_s: int, tmp_path: Path) -> None:
    if (lack := clocks.missing()) is not None:
        pytest.skip(f"A CLOCK THAT IS OFF IS NOT TESTED: {lack}")

    async def told() -> tuple[float, float]:
        path, clock = tmp_path / "time", clocks.ClockFile(tmp_path / "clock")
        clock.put_off(ahead_s)
        environment = {clocks.CLOCK_FILE: str(clock.path)}
        where = {"log": tmp_path / "log", "environment": environment}
        process = await clocks.shifting_zygote().fork("tests.chaos.clocks:tell", str(path), **where)  # type: ignore[arg-type]
        assert await process.wait() == 0
        wall, monotonic = path.read_text("ascii").split()
        return float(wall), float(monotonic)

    before = time.time(), time.monotonic()
    wall, monotonic = asyncio.run(told())
    after = time.time(), time.monotonic()
    assert before[0] <= wall - ahead_s <= after[0]
    assert before[1] <= monotonic <= after[1]


def test_a_proxy_holds_back_what_one_process_sends_and_lets_others_pass() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def talk() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = Proxy()
        proxy.target = server.sockets[0].getsockname()
        await proxy.start()
        (one, to_one), (other, to_other) = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(2)]
        host, port = to_one.get_extra_info("sockname")
        assert f"{host}:{port}" in addresses_of(os.getpid())
        proxy.hold(lambda sender, chunk: sender == f"{host}:{port}" and b"secret" in chunk)
        for line in (b"hello\n", b"secret\n"):
            for writer in (to_one, to_other):
                writer.write(line)
        assert [await other.readline() for _ in range(2)] == [b"hello\n", b"secret\n"]
        assert proxy.held == 1
        proxy.release()
        assert [await one.readline() for _ in range(2)] == [b"hello\n", b"secret\n"]
        for writer in (to_one, to_other):
            writer.close()
        await proxy.close()
        server.close()

    asyncio.run(talk())


def test_no_packet_gets_through_a_partition_until_it_heals() -> None:
    if (lack := networks.missing()) is not None:
        pytest.skip(f"PARTITIONS ARE NOT TESTED: {lack}")
    network = networks.Network(["a"])
    network.start()
    try:
        with socket.create_server((network.host, 0)) as listening:
            port = listening.getsockname()[1]
            connect = f"import socket; socket.create_connection(('{network.host}', {port}), 2)"

            def connects() -> bool:
                command = [*network.prefix("a"), sys.executable, "-S", "-c", connect]
                return subprocess.run(command, check=False, capture_output=True).returncode == 0

            assert connects()
            network.lose("a", network.host, port)
            assert not connects()
            network.heal()
            assert connects()
    finally:
        network.close()
