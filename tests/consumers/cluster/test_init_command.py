"""`atomlog init --kafka` as a person uses it: what it prints, refuses, and leaves behind; no secret anywhere."""

import json
import os
from pathlib import Path

from tests.support.commands import atomlog
from tests.support.kafka import SharedBroker

WEAK = {"ATOMLOG_ALLOW_WEAK": "replication.factor,min.insync.replicas"}


async def test_a_first_node_and_one_that_joins(tmp_path: Path, kafka: SharedBroker, kafka_prefix: str) -> None:
    kafka_options = ("--kafka", kafka.bootstrap, "--prefix", kafka_prefix, "--replication", "1")
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    unsafe = await atomlog("init", "--store", first, *kafka_options, "--json", environment={"ATOMLOG_ALLOW_WEAK": ""})
    assert unsafe.code == 2
    assert json.loads(unsafe.out)["error"]["code"] == "STORE_UNSAFE"
    made = await atomlog("init", "--store", first, *kafka_options, "--partitions", "2", "--json", environment=WEAK)
    assert made.code == 0, made.err
    shown = json.loads(made.out)
    assert (shown["joined"], shown["lacks"], shown["partitions"]) == (False, [], 2)
    assert "every other node needs copies of both" in made.err
    bare = await atomlog("init", "--store", str(tmp_path / "3"), *kafka_options, environment=WEAK)
    assert "joined the store" in bare.out
    assert [name for name in ("master.key", "node.pem") if f"{name} is missing" in bare.err] == [
        "master.key",
        "node.pem",
    ]
    files = ("--master-key", f"{first}/master.key", "--node-pem", f"{first}/node.pem")
    joined = await atomlog("init", "--store", second, *kafka_options, *files, environment=WEAK)
    assert (joined.code, joined.err) == (0, "")
    written = await atomlog("status", "--store", second, "--json")
    assert json.loads(written.out)["log_id"] == shown["log_id"]
    again = await atomlog("init", "--store", second, *kafka_options, environment=WEAK)
    assert (again.code, "not empty" in again.err) == (2, True)


async def test_options_of_a_node_need_kafka_and_a_configuration_is_checked(tmp_path: Path, kafka: SharedBroker) -> None:
    alone = await atomlog("init", "--store", str(tmp_path / "s"), "--node-pem", "x")
    assert (alone.code, "--node-pem" in alone.err, (tmp_path / "s").exists()) == (2, True, False)
    config, secret = tmp_path / "kafka.toml", "correct horse"
    for text, told in (
        (f'sasl_password = "{secret}"', "sasl_password_file"),
        ('bootsrap = "h:1"', "bootsrap"),
        ("a = [", "TOML"),
        ("security_protocol = 7", "must be text"),
    ):
        config.write_text(text)
        wrong = await atomlog(
            "init", "--store", str(tmp_path / "s"), "--kafka", kafka.bootstrap, "--kafka-config", str(config)
        )
        assert (wrong.code, told in wrong.err, secret in wrong.err + wrong.out) == (2, True, False), wrong.err
    left = b"".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())
    assert secret.encode() not in left or os.stat(tmp_path / "s/kafka.toml").st_mode & 0o077 == 0
