"""Writes of a node that owns nothing: to the owner, whoever it is by now, over channels that break."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster import credentials, writing
from atomlog.consumers.cluster.channel import ChannelServer
from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.consumers.cluster.reports import Heard
from atomlog.consumers.cluster.writing import ClusterWriteSide
from atomlog.consumers.machine import Machine
from atomlog.consumers.parts import Parts, open_parts
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from tests.support.kernel_world import batch, create

RESULT: Mapping[str, Any] = {
    "results": [
        {
            "as": None,
            "atom": "01910000-0000-7000-8000-000000000001",
            "revision": "01910000-0000-7000-8000-000000000002",
        }
    ],
    "receipt": {"space": "notes", "partition": 0, "position": 7, "term": 3, "chain": "00" * 16},
    "replayed": False,
}


class Directory:
    """Who is said to own: each round takes the next answer, the last one stays. `others` could own, too."""

    def __init__(self, *owners: str | None, others: Sequence[str] = ()) -> None:
        self.owners = list(owners)
        self.others = list(others)

    async def endpoint(self, partition: int) -> str | None:
        return self.owners[0]

    async def candidates(self, partition: int) -> Sequence[str]:
        owner = self.owners.pop(0) if len(self.owners) > 1 else self.owners[0]
        return [one for one in (owner, *self.others) if one]

    async def kernels(self) -> Sequence[str]:
        return self.others

    async def heard(self) -> Sequence[Heard]:
        return ()

    async def close(self) -> None:
        pass


class Deaf(Directory):
    """The control topic cannot be read."""

    async def candidates(self, partition: int) -> Sequence[str]:
        raise fail("KAFKA_UNAVAILABLE", "the control topic cannot be read", retry_after_ms=1)

    async def endpoint(self, partition: int) -> str | None:
        raise fail("KAFKA_UNAVAILABLE", "the control topic cannot be read", retry_after_ms=1)


class Nodes:
    """Servers of other nodes, each with its answers in order; the last one stays."""

    def __init__(self, own: Credentials) -> None:
        self.own = own
        self.servers: list[ChannelServer] = []
        self.asked: list[tuple[int, Mapping[str, Any]]] = []

    async def start(self, *answers: Any) -> str:
        number, left = len(self.servers), list(answers)

        async def handler(message: Mapping[str, Any]) -> Any:
            self.asked.append((number, message))
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return await answer(message) if callable(answer) else answer

        server = ChannelServer("127.0.0.1", 0, self.own, handler)
        await server.start()
        self.servers.append(server)
        return server.endpoint

    async def close(self) -> None:
        for server in self.servers:
            await server.close()


class World:
    def __init__(self, parts: Parts, own: Credentials) -> None:
        self.parts = parts
        self.nodes = Nodes(own)
        self.sides: list[ClusterWriteSide] = []

    def side(self, directory: Directory, own: Credentials | None = None) -> ClusterWriteSide:
        side = ClusterWriteSide(self.parts, directory, Connections(lambda: own or self.nodes.own))
        self.sides.append(side)
        return side


async def made(path: Path, **options: Any) -> World:
    await AsyncStore.init(path / "s")
    files = SystemFiles()
    credentials.create(files, str(path / "node.pem"))
    config = StoreConfig.load(files, str(path / "s"))
    settings = Settings(write_timeout_ms=options.pop("write_timeout_ms", 20_000), node_call_timeout_ms=10_000)
    parts = open_parts(str(path / "s"), config, settings=settings, machine=Machine(), **options)
    return World(parts, Credentials.load(files, str(path / "node.pem")))


async def ended(world: World) -> None:
    for side in world.sides:
        await side.close()
    await world.nodes.close()
    await world.parts.close()


def not_owner(endpoint: str | None = None) -> AtomlogError:
    detail = {"path": "partition", "code": "NOT_OWNER", "message": "not here"}
    return fail("NOT_OWNER", "not here", details=[detail if endpoint is None else {**detail, "endpoint": endpoint}])


async def write(side: ClusterWriteSide, key: str = "k") -> model.WriteResult:
    return await side.write(batch(key, create("a")), model.LOCAL_PRINCIPAL)


async def code_of(side: ClusterWriteSide) -> AtomlogError:
    with pytest.raises(AtomlogError) as refused:
        await write(side)
    return refused.value


async def test_a_write_goes_to_the_owner_and_its_answer_comes_back(tmp_path: Path) -> None:
    world = await made(tmp_path)
    outcome = {"outcome": "accepted", "term": None, "result": RESULT}
    endpoint = await world.nodes.start(RESULT, outcome, fail("REVISION_CONFLICT", "no", retry_after_ms=3))
    side = world.side(Directory(endpoint))
    result = await write(side)
    assert (result.receipt.position, len(result.results), result.replayed) == (7, 1, False)
    assert (await side.outcome("notes", "k", model.LOCAL_PRINCIPAL)).state == "accepted"
    refused = await code_of(side)
    assert (refused.code, refused.message, refused.retry_after_ms) == ("REVISION_CONFLICT", "no", 3)
    assert [message["op"] for _, message in world.nodes.asked] == ["write", "outcome", "write"]
    await ended(world)


async def test_many_writes_at_once_share_one_connection(tmp_path: Path) -> None:
    world = await made(tmp_path)
    endpoint = await world.nodes.start(RESULT)
    side = world.side(Directory(endpoint))
    await asyncio.gather(*(write(side, f"k{n}") for n in range(200)))
    assert len(world.nodes.servers[0]._conversations) == 1
    assert len(world.nodes.asked) == 200
    await ended(world)


async def test_who_is_asked_wrongly_says_who_owns_and_two_that_name_each_other_are_asked_once(tmp_path: Path) -> None:
    world = await made(tmp_path)
    owner = await world.nodes.start(RESULT)
    wrong = await world.nodes.start(not_owner(owner))
    await write(world.side(Directory(wrong)))
    assert [number for number, _ in world.nodes.asked] == [1, 0]
    world.nodes.asked.clear()
    left = await world.nodes.start(not_owner())
    right = await world.nodes.start(not_owner(left))
    left_again = await world.nodes.start(not_owner(right))
    await write(world.side(Directory(left_again, None, owner, others=[])))
    assert [number for number, _ in world.nodes.asked] == [4, 3, 2, 0]
    await ended(world)


async def test_while_the_control_topic_cannot_be_read_the_last_claim_and_who_answered_last_are_asked(
    tmp_path: Path,
) -> None:
    world = await made(tmp_path, write_timeout_ms=2_000)
    owner = await world.nodes.start(RESULT)
    directory = Deaf(owner)
    side = world.side(directory)
    assert (await code_of(side)).code == "KAFKA_UNAVAILABLE"
    side._claims._known[0] = (world.parts.machine.clock.monotonic_us() + 10**9, owner)
    await write(side)
    side._claims._known.clear()
    await write(side)
    assert len(world.nodes.asked) == 2
    silent = world.side(Directory(None))  # nobody reports, and who claimed last is gone
    silent._claims._known[0] = (world.parts.machine.clock.monotonic_us() + 10**9, "tls:127.0.0.1:1")
    refused = await code_of(silent)
    assert (refused.code, "cannot be reached" in refused.message) == ("NOT_OWNER", True)
    await ended(world)


async def test_whoever_could_own_is_asked_when_the_one_who_is_said_to_own_is_not_there(tmp_path: Path) -> None:
    world = await made(tmp_path)
    owner = await world.nodes.start(RESULT)
    standby = await world.nodes.start(not_owner(owner))
    (tmp_path / "other").mkdir()
    strangers = Nodes((await made(tmp_path / "other")).nodes.own)
    stranger = await strangers.start(RESULT)
    for liar in ("tls:127.0.0.1:1", stranger):
        world.nodes.asked.clear()
        await write(world.side(Directory(liar, others=[liar, standby])))
        assert [number for number, _ in world.nodes.asked] == [1, 0]
    confused = await world.nodes.start(not_owner("not an endpoint"), RESULT)
    await write(world.side(Directory(confused)))
    await strangers.close()
    await ended(world)


async def test_a_request_that_was_sent_and_not_answered_is_sent_again_to_whoever_owns_then(tmp_path: Path) -> None:
    world = await made(tmp_path)

    async def die(message: Mapping[str, Any]) -> Any:
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, world.nodes.servers[0].close())
        await asyncio.Event().wait()

    first = await world.nodes.start(die)
    second = await world.nodes.start(fail("IN_DOUBT", "lost the partition"), RESULT)
    directory = Directory(first, first, second, second)  # for a moment everybody says that the dead one owns
    await write(world.side(directory))
    (sent, again, last) = [message["batch"] for _, message in world.nodes.asked]
    assert sent == again == last
    await ended(world)


async def test_an_owner_whose_clock_is_off_is_asked_again_for_it_gives_back(tmp_path: Path) -> None:
    world = await made(tmp_path)
    first = await world.nodes.start(fail("CLOCK_SKEW", "behind"))
    second = await world.nodes.start(RESULT)
    await write(world.side(Directory(first, first, second)))
    alone = await made(tmp_path / "alone", write_timeout_ms=300)
    owner = await alone.nodes.start(*[fail("CLOCK_SKEW", "behind")] * 100)
    assert (await code_of(alone.side(Directory(owner)))).code == "CLOCK_SKEW"
    for one in (world, alone):
        await ended(one)


async def test_an_owner_that_never_answers_leaves_the_write_in_doubt(tmp_path: Path) -> None:
    world = await made(tmp_path, write_timeout_ms=300)

    async def silent(message: Mapping[str, Any]) -> Any:
        await asyncio.Event().wait()

    side = world.side(Directory(await world.nodes.start(silent)))
    refused = await code_of(side)
    assert (refused.code, refused.retry_after_ms is not None) == ("IN_DOUBT", True)
    assert "same key" in refused.message
    assert (await side.outcome("notes", "k", model.LOCAL_PRINCIPAL)).state == "unknown"
    await ended(world)


async def test_without_any_node_that_owns_a_write_is_refused_at_once_with_the_way_out(tmp_path: Path) -> None:
    world = await made(tmp_path)
    refused = await code_of(world.side(Directory(None)))
    assert (refused.code, refused.kind) == ("NOT_OWNER", "unavailable")
    assert "atomlog kernel" in refused.message
    assert refused.retry_after_ms is not None
    await ended(world)


async def test_an_owner_that_stands_still_is_not_waited_for_once_another_one_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LOOK_S", 0.05)
    world = await made(tmp_path)
    still = asyncio.Event()

    async def silent(message: Mapping[str, Any]) -> Any:
        still.set()
        await asyncio.Event().wait()

    directory = Directory(await world.nodes.start(silent))
    writes = asyncio.create_task(write(world.side(directory)))
    await still.wait()
    directory.owners[:] = [await world.nodes.start(RESULT)]
    await writes
    await ended(world)


async def test_a_side_that_closes_leaves_what_was_sent_in_doubt_at_once(tmp_path: Path) -> None:
    world = await made(tmp_path, write_timeout_ms=10**9)
    asked = asyncio.Event()

    async def silent(message: Mapping[str, Any]) -> Any:
        asked.set()
        await asyncio.Event().wait()

    side = world.side(Directory(await world.nodes.start(silent)))
    writes = asyncio.create_task(code_of(side))
    await asked.wait()
    await side.close()
    assert (await writes).code == "IN_DOUBT"
    await ended(world)


async def test_what_was_in_doubt_stays_so_when_it_cannot_be_tried_again(tmp_path: Path) -> None:
    world = await made(tmp_path, write_timeout_ms=400)
    owner = await world.nodes.start(fail("IN_DOUBT", "lost"), fail("OVERLOADED", "full", retry_after_ms=1))
    assert (await code_of(world.side(Directory(owner)))).code == "IN_DOUBT"
    refusing = await world.nodes.start(fail("IN_DOUBT", "lost"), fail("REVISION_CONFLICT", "decided"))
    assert (await code_of(world.side(Directory(refusing)))).code == "REVISION_CONFLICT"
    full = await world.nodes.start(fail("OVERLOADED", "full", retry_after_ms=1))
    assert (await code_of(world.side(Directory(full)))).code == "OVERLOADED"
    await ended(world)


async def test_while_nodes_are_there_a_write_waits_for_one_of_them_to_take_over(tmp_path: Path) -> None:
    world = await made(tmp_path)
    owner = await world.nodes.start(RESULT)
    await write(world.side(Directory("tls:127.0.0.1:1", "tls:127.0.0.1:1", owner)))
    gone = await made(tmp_path / "gone", write_timeout_ms=300)
    refused = await code_of(gone.side(Directory("tls:127.0.0.1:1")))
    assert refused.code == "NOT_OWNER", "nothing was sent, so nothing is in doubt"
    assert "cannot be reached" in refused.message
    for one in (world, gone):
        await ended(one)


async def test_a_node_without_the_right_certificate_writes_nothing_and_is_told_so(tmp_path: Path) -> None:
    world = await made(tmp_path)
    side = world.side(Directory(await world.nodes.start(RESULT)), (await made(tmp_path / "other")).nodes.own)
    assert (await code_of(side)).code == "ACCESS_DENIED"

    def missing() -> Credentials:
        return Credentials.load(SystemFiles(), str(tmp_path / "nowhere" / "node.pem"))

    without = ClusterWriteSide(world.parts, Directory(world.nodes.servers[0].endpoint), Connections(missing))
    refused = await code_of(without)
    assert (refused.code, "--node-pem" in refused.message) == ("STORE_NOT_FOUND", True)
    assert world.nodes.asked == []
    await ended(world)


async def test_places_are_the_latest_word_of_all_nodes_that_answer(tmp_path: Path) -> None:
    world = await made(tmp_path)
    one = await world.nodes.start({"0": {"term": 2, "position": 9}, "1": {"term": 1, "position": 1}})
    two = await world.nodes.start({"0": {"term": 3, "position": 4}})
    broken = await world.nodes.start(fail("OVERLOADED", "no"))
    side = world.side(Directory(one, others=[one, two, broken, "tls:127.0.0.1:1"]))
    assert await side.places() == {0: {"term": 3, "position": 4}, 1: {"term": 1, "position": 1}}
    await ended(world)


async def test_receipts_that_a_write_cites_travel_with_it(tmp_path: Path) -> None:
    async with AsyncStore.open(tmp_path / "read") as store:
        written = await store.write(batch("k", create("a")))
        page = await store.get("key:a", space="notes", at_least=written.receipt)
        receipt, body = page.receipt.to_dict()["receipt"], page.receipt.to_bytes().decode()
        parts = store._parts
        world = World(parts, (await made(tmp_path)).nodes.own)
        side = world.side(Directory(await world.nodes.start(RESULT)))
        cited = {"kind": "generated", "activity": "test", "receipts": [receipt]}
        change = {"op": "create", "key": "b", "schema": "source", "value": {"text": "b"}, "provenance": cited}
        slot = {
            "op": "create",
            "key": "c",
            "schema": "source",
            "value": {},
            "slots": [{"role": "r", "target": f"{receipt}#a1"}],
        }
        for changes in ([change], [slot], [change, slot]):
            await side.write(batch("k2", *changes), model.LOCAL_PRINCIPAL)
        unknown = {**cited, "receipts": ["01910000-0000-7000-8000-000000000001"]}
        await side.write(batch("k3", {**change, "provenance": unknown}), model.LOCAL_PRINCIPAL)
        await side.write(batch("k4", create("d")), model.LOCAL_PRINCIPAL)
        sent = [message.get("receipts") for _, message in world.nodes.asked]
        assert sent == [[body], [body], [body], None, None]
        await side.close()
        await world.nodes.close()


async def test_a_store_that_was_opened_for_reading_writes_nothing(tmp_path: Path) -> None:
    world = await made(tmp_path, read_only=True)
    assert (await code_of(world.side(Directory("tls:127.0.0.1:1")))).code == "STORE_READ_ONLY"
    await ended(world)
