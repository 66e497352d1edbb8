"""Records that count for the rule and that a reader must not guess about: written in the name of the current owner.

Each stops the partition that it stands in, for everybody who needs it, with what to do; the other partitions go on.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.commit_rule import CommitState
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import partition_of
from atomlog.kernel.kafka.client import KafkaRecord
from atomlog.kernel.settings import Settings
from tests.cluster.kernels import SETTINGS, Kernels
from tests.cluster.strangers import HOSTILE, chained, command, edited, is_one_clear_line, next_of, sent, stranger
from tests.support.commands import until
from tests.support.kafka import SharedBroker
from tests.support.kernel_world import batch, create

UPGRADE, NEWER = "UPGRADE_REQUIRED", "use a newer version of the program"
NEXT: Mapping[str, tuple[Callable[[CommitState], KafkaRecord], str, str]] = {
    "headers that are not the seven": (lambda state: edited(next_of(state), chain=None), UPGRADE, NEWER),
    "a newer rule": (lambda state: sent(chained(state, replace(next_of(state), rule=2))), UPGRADE, "rule 2"),
    "an unknown kind": (lambda state: sent(chained(state, replace(next_of(state), kind="Teleport"))), UPGRADE, NEWER),
    "a newer schema": (lambda state: sent(chained(state, replace(next_of(state), schema=b"8 bytes!"))), UPGRADE, NEWER),
    "a wrong magic": (lambda state: sent(chained(state, replace(next_of(state), value=b"\0\0"))), UPGRADE, NEWER),
    "a level above": (lambda state: sent(chained(state, next_of(state, "Upgrade", b"\x12\x00"))), UPGRADE, "level 9"),
    "another chain": (
        lambda state: sent(replace(next_of(state), chain=bytes(16))),
        "LOG_DIVERGED",
        "rebuild {name} --force",
    ),
    "a hostile batch": (
        lambda state: sent(chained(state, next_of(state, "Batch", HOSTILE[0]))),
        "CORRUPT",
        "revisions",
    ),
}
PARTITIONS = len(NEXT) + 1
LAST_STOP = len(NEXT) - 2  # the last one that stops every index, with no Repair to wait for
WELL = len(NEXT)  # the partition that nothing happens to, at first
PROJECTIONS = ("ids", "relations")

pytestmark = pytest.mark.timeout(240)


def space_in(partition: int) -> str:
    return next(name for name in (f"s{n}" for n in range(1_000)) if partition_of(name, PARTITIONS) == partition)


async def test_what_must_not_be_guessed_about_stops_its_partition_and_no_other(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=PARTITIONS) as kernels:
        kernel = await kernels.start("kernel")
        await kernels.kept(kernel)
        node = await kernels.directory("node")
        for partition in range(PARTITIONS):
            await kernels.owner(partition)
        events: list[dict[str, Any]] = []
        opened = AsyncStore.open(
            node,
            create=False,
            projections=PROJECTIONS,
            settings=Settings(write_timeout_ms=1_000),
            on_event=lambda event: events.append(dict(event)),
        )
        async with stranger(kafka.bootstrap, kafka_prefix, node) as other, opened as store:
            for partition in range(PARTITIONS):
                await store.write(batch("k", create("a"), space=space_in(partition)))
            await store.wait_until_current(60)
            for partition, (make, _, _) in enumerate(NEXT.values()):
                await other.send("atoms", partition, [make(await other.state(partition))])

            # 1. The kernel names each partition and says why; so does the index of ids. Others skip what they can.
            await until(lambda: len(kernel.said("stopped")) == len(NEXT), "the kernel has met all of them")
            stops = {event["partition"]: event["error"] for event in kernel.said("stopped")}
            for partition, (_, code, told) in enumerate(NEXT.values()):
                assert stops[partition]["code"] == code
                assert f"partition {partition}, position 2: " in stops[partition]["message"]
                assert told.format(name="heads") in stops[partition]["message"]

            def met() -> list[dict[str, Any]]:
                return [event for event in events if event["event"] in ("stopped", "quarantined")]

            await until(lambda: len(met()) == len(PROJECTIONS) * len(NEXT), "each index has met all of them")
            for event in met():
                _, code, told = list(NEXT.values())[event["partition"]]
                if code == "CORRUPT" and event["projection"] != "ids":
                    assert event["event"] == "quarantined"
                else:
                    assert (event["event"], event["error"]["code"]) == ("stopped", code)
                    assert told.format(name=event["projection"]) in event["error"]["message"]
                    assert code != "CORRUPT" or "Repair" in event["error"]["message"]

            # 2. What was there is read; what is written there is refused with the reason; elsewhere all goes on.
            for partition in (0, WELL - 1):
                page = await store.get("key:a", space=space_in(partition))
                assert page.atoms[0].value == {"text": "text"}
                with pytest.raises(AtomlogError) as refused:
                    await store.write(batch("l", create("b"), space=space_in(partition)))
                assert refused.value.code == "NOT_OWNER"
                assert list(NEXT.values())[partition][1] in refused.value.message
            made = await store.write(batch("l", create("b"), space=space_in(WELL)))
            assert len((await store.get("key:b", space=space_in(WELL), at_least=made.receipt)).atoms) == 1
            status = {one["name"]: one for one in (await store.status()).to_dict()["projections"]}
            assert {one["health"] for one in status.values()} == {"STOPPED"}
            assert [status[name]["quarantined"] for name in PROJECTIONS] == [0, 1]
            assert max(part["lag_s"] for one in status.values() for part in one["partitions"]) < 86_400

            # 3. A kernel that starts then owns what it can.
            assert await kernel.terminate() == 0
            kernel = await kernels.start("kernel")
            await kernels.owner(WELL, [kernel])
            assert {event["partition"]: event["error"] for event in kernel.said("stopped")} == stops

            # 4. With the last partition it ends: one line, no traceback.
            await other.send("atoms", WELL, [next(iter(NEXT.values()))[0](await other.state(WELL))])
            assert await kernel.process.wait() == 70
            (line,) = (tmp_path / "kernel.log").read_text().splitlines()
            assert line.startswith("error: UPGRADE_REQUIRED: partition ")
        late = await kernels.directory("late")
        most = f"0-{LAST_STOP}"  # in all others something may go on
        for directory, asked in (
            (tmp_path / "kernel", ("kernel", "--listen", "127.0.0.1:0")),
            (late, ("consume", *PROJECTIONS, "--partitions", most)),
        ):
            done = await command(tmp_path / "again.log", *asked, "--store", str(directory), environment=SETTINGS)
            assert (done.code, is_one_clear_line(done, "UPGRADE_REQUIRED")) == (70, True), done.err
        for shown in (("get", "key:a", "--space", space_in(0)), ("status",)):
            done = await command(tmp_path / "shown.log", *shown, "--json", "--store", str(node), environment=SETTINGS)
            assert done.code == 0, done.err
            assert json.loads(done.out)
            assert "Traceback" not in done.err
