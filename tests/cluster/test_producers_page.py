"""docs/producers.md: its examples are run as they stand there; its fingerprint and headers are the real ones."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster.inbox.outcomes import CUT, OFFSET, OK, PARTITION, REGISTRATION
from atomlog.consumers.cluster.inbox.requests import read_request
from atomlog.schemas import codec
from atomlog.schemas.batch import Inbox
from tests.cluster.inboxes import ROOT
from tests.cluster.kernels import Kernels
from tests.support.commands import atomlog
from tests.support.kafka import SharedBroker, required_runtime

PAGE = (ROOT / "docs/producers.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TOOLS = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


def as_here(text: str, kafka: SharedBroker, prefix: str) -> str:
    """The example with this test's broker and topics in place of those that it names."""
    assert "localhost:9092" in text
    return (
        text.replace("localhost:9092", kafka.bootstrap)
        .replace("atomlog.", f"{prefix}.")
        .replace(f'"{prefix}.offset"', '"atomlog.offset"')
    )


async def run(*command: str, path: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def tools(directory: Path) -> None:
    """Kafka's scripts as its distribution has them, on the jars of the tests."""
    runtime = required_runtime()
    directory.mkdir()
    for name, main in TOOLS.items():
        command = runtime.command(main, ['"$@"'], heap="128m", logging="log4j2-tools.properties")
        quoted = " ".join(part if part == '"$@"' else f"'{part}'" for part in command)
        (directory / name).write_text(f"#!/bin/sh\nexec {quoted}\n", "utf-8")
        (directory / name).chmod(0o755)


@pytest.mark.timeout(240)
async def test_both_ways_to_send_are_run_as_the_page_has_them(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    registering, console = SHELL
    tools(tmp_path / "bin")
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        kernel = await kernels.start("one")
        made = await atomlog(*registering.split()[1:], "--store", str(kernel.directory), "--json")
        assert made.code == 0, made.err
        assert json.loads(made.out)["inbox"] == f"{kafka_prefix}.inbox.crawler"
        await kernels.kept(kernel)
        python = await run(sys.executable, "-c", as_here(PYTHON[0], kafka, kafka_prefix))
        told = json.loads(python)
        assert (told["ok"], told["inbox"]["offset"], told["receipt"]["space"]) == (True, 0, "notes")
        lines = await run(
            "sh", "-c", f"{as_here(console, kafka, kafka_prefix).rstrip()} --max-messages 2", path=str(tmp_path / "bin")
        )
        first, second = map(json.loads, lines.splitlines())
        assert first == told
        assert (second["ok"], second["inbox"]["offset"]) == (True, 1)
        listed = await atomlog("inbox", "list", "--store", str(kernel.directory), "--json")
        assert json.loads(listed.out)["rights"] == ["mark-source", "write"]
        gone = await atomlog("inbox", "delete", "crawler", "--store", str(kernel.directory))
        assert gone.code == 0, gone.err
        assert f"--delete --topic {kafka_prefix}.inbox.crawler" in gone.out
        assert (await atomlog("inbox", "list", "--store", str(kernel.directory))).out == ""


async def test_a_store_of_its_own_has_no_inboxes(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert (await atomlog("init", "--store", store)).code == 0
    refused = await atomlog("inbox", "create", "crawler", "--store", store)
    assert refused.code == 2
    assert "not a node of one on Kafka" in refused.err


def test_the_avro_example_makes_a_request() -> None:
    names: dict[str, Any] = {}
    exec(PYTHON[1], names)
    change = {"op": "create", "key": "tea", "schema": "source", "value": {"text": "Green tea"}}
    value = names["request"](dict(codec.load("WriteRequestV1").source), change)
    parsed = read_request(value, Inbox(topic="ab" * 16, partition=0, offset=0), frozenset())
    assert parsed.batch["changes"] == [change]


def test_the_fingerprint_is_that_of_the_schema_and_the_headers_are_all_there() -> None:
    assert f"little-endian: `{codec.load('WriteRequestV1').fingerprint.hex()}`" in PAGE
    table = PAGE.partition("## An outcome")[2].partition("\n\nThe key")[0]
    named = re.findall(r"`(atomlog\.\w+)`", table)
    assert named == [REGISTRATION, PARTITION, OFFSET, OK, CUT]
