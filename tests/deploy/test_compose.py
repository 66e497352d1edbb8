"""deploy/compose: the services hang together, and each command line is one that the command takes."""

import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose.healthy import following, listening, main
from deploy.kafka.runtime import VERSION
from tests.deploy.command_lines import check_command_line
from tests.house.tree import ROOT

COMPOSE = ROOT / "deploy/compose"
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
BROKERS = [name for name in SERVICES if name.startswith("broker-")]
NODES = [name for name in SERVICES if name.startswith(("kernel-", "consume-"))]
MAKE_NODES = COMPOSE / "make-nodes.sh"
DOCKERFILE = (COMPOSE / "Dockerfile").read_text(encoding="utf-8").splitlines()
IMAGE = [line.split(" ", 1) for line in DOCKERFILE if line and not line.startswith("#")]
KEYS = {
    *("image", "build", "init", "restart", "stop_grace_period", "healthcheck", "environment", "volumes"),
    *("depends_on", "command", "entrypoint", "hostname"),
}


def test_it_has_three_brokers_two_kernels_and_three_consumers() -> None:
    assert BROKERS == ["broker-1", "broker-2", "broker-3"]
    assert NODES == ["kernel-1", "kernel-2", "consume-ids", "consume-relations", "consume-vectors"]
    assert SERVICES.keys() == {*BROKERS, *NODES, "make-nodes"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_names_only_what_there_is(name: str) -> None:
    service = SERVICES[name]
    assert service.keys() <= KEYS
    for other, wanted in service.get("depends_on", {}).items():
        assert other in SERVICES
        assert wanted["condition"] == ("service_healthy" if other in BROKERS else "service_completed_successfully")
    for volume in service["volumes"]:
        source = volume.partition(":")[0]
        assert source in FILE["volumes"] or (COMPOSE / source).exists()


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_an_exact_version_or_built_here(name: str) -> None:
    service = SERVICES[name]
    if name in BROKERS:
        assert service["image"] == f"apache/kafka:{VERSION}"
    else:
        build = service["build"]
        assert (COMPOSE / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()


@pytest.mark.parametrize("name", [*BROKERS, *NODES])
def test_every_lasting_service_is_restarted_has_time_to_stop_and_tells_its_health(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"] == "60s"
    assert service["healthcheck"].keys() == {"test", "interval", "timeout", "retries", "start_period"}
    assert service["healthcheck"]["test"][0] == "CMD"


def test_the_brokers_are_one_cluster_that_loses_nothing() -> None:
    found = [SERVICES[name]["environment"] for name in BROKERS]
    assert [one.pop("KAFKA_NODE_ID") for one in found] == ["1", "2", "3"]
    assert [one.pop("KAFKA_ADVERTISED_LISTENERS") for one in found] == [f"CLIENTS://{name}:9092" for name in BROKERS]
    assert found[0] == found[1] == found[2]
    assert found[0]["KAFKA_CONTROLLER_QUORUM_VOTERS"] == ",".join(
        f"{number}@{name}:9093" for number, name in enumerate(BROKERS, 1)
    )
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", found[0]["CLUSTER_ID"])
    assert found[0]["KAFKA_DEFAULT_REPLICATION_FACTOR"] == "3"
    assert found[0]["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
    assert found[0]["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"


@pytest.mark.parametrize("name", NODES)
def test_every_node_has_a_directory_of_its_own_and_a_command_that_parses(name: str) -> None:
    argv = SERVICES[name]["command"]
    assert argv[argv.index("--store") + 1] == f"/nodes/{name}"
    check_command_line(argv)


@pytest.mark.parametrize("name", NODES)
def test_a_health_check_asks_for_what_the_node_does(name: str) -> None:
    argv = SERVICES[name]["command"]
    python, program, action, *rest = SERVICES[name]["healthcheck"]["test"][1:]
    assert (python, (COMPOSE / Path(program).name).is_file()) == ("python", True)
    assert argv[-2:] == ["--listen", f"{SERVICES[name]['hostname']}:7420"]
    if argv[0] == "kernel":
        assert (action, rest) == ("listening", ["7420"])
    else:
        assert (action, rest) == ("following", [f"/nodes/{name}", *argv[1 : argv.index("--store")]])


@pytest.mark.parametrize("words", [["kernel-1"], ["kernel-2", "--node-pem", "a", "--master-key", "b"]])
def test_the_directories_are_made_by_a_command_line_that_parses(words: list[str]) -> None:
    (line,) = re.findall(r"^\s*atomlog (.+)$", MAKE_NODES.read_text(encoding="utf-8"), re.MULTILINE)
    name, *more = words
    given = {'"$node"': f"/nodes/{name}", '"$ATOMLOG_BROKERS"': "broker-1:9092,broker-2:9092", '"$@"': shlex.join(more)}
    for variable, value in given.items():
        line = line.replace(variable, value)
    check_command_line(shlex.split(line))


class TestTheImage:
    def test_has_instructions_that_there_are(self) -> None:
        assert {word for word, _ in IMAGE} <= {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT"}

    def test_is_built_on_an_exact_python(self) -> None:
        images = [rest.split()[0] for word, rest in IMAGE if word == "FROM"]
        assert all(re.fullmatch(r"python:3\.\d+-slim-bookworm", image) for image in images)

    def test_copies_only_what_there_is_and_every_source_root(self) -> None:
        copied = [rest.split()[:-1] for word, rest in IMAGE if word == "COPY" and not rest.startswith("--from")]
        names = [name for group in copied for name in group]
        assert all((ROOT / name).exists() for name in names)
        assert {"schemas/", "kernel/", "projections/", "consumers/"} <= set(names)

    def test_installs_with_hashes_and_runs_as_nobody_in_particular(self) -> None:
        installs = [rest for word, rest in IMAGE if word == "RUN" and "pip install" in rest]
        assert all("--require-hashes" in rest or rest.endswith("--no-deps .") for rest in installs)
        assert ["USER", "atomlog"] in IMAGE
        entry = next(rest for word, rest in IMAGE if word == "ENTRYPOINT")
        assert json.loads(entry) == ["atomlog"]


class TestTheHealthCheck:
    def test_finds_who_listens_and_who_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert listening(port) is None
        assert f"nobody listens at port {port}" in (listening(port) or "")

    @pytest.mark.parametrize(
        ("note", "wrong"),
        [
            ('{"pid": 7, "health": "OK", "error": null}', None),
            ('{"pid": 7, "health": "DEGRADED", "error": null}', None),
            ('{"pid": 7, "health": "STOPPED", "error": {"code": "CORRUPT"}}', "ids stands still: {'code': 'CORRUPT'}"),
            ('{"pid": null, "health": "OK", "error": null}', "nobody follows ids"),
            ("{", "ids has no note of its health"),
        ],
    )
    def test_finds_who_stands_still(self, tmp_path: Path, note: str, wrong: str | None) -> None:
        (tmp_path / "projections/ids").mkdir(parents=True)
        (tmp_path / "projections/ids/health.json").write_text(note, encoding="utf-8")
        found = following(tmp_path, ["ids"])
        assert (found is None) == (wrong is None)
        assert (found or "").startswith(wrong or "")

    def test_ends_with_one_and_the_reason(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["following", str(tmp_path), "ids"]) == 1
        assert capsys.readouterr().out.startswith("ids has no note of its health")

    def test_needs_nothing_but_python(self) -> None:
        program = COMPOSE / "healthy.py"
        done = subprocess.run([sys.executable, "-S", "-E", str(program), "following", "/nonexistent"], check=False)
        assert done.returncode == 0  # no projection was asked for
