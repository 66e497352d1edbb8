"""docs/kafka.md: the certificate that it makes is one, and its kafka.toml has every key that there is."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from atomlog.consumers.cluster.credentials import Credentials
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.system import SystemFiles
from tests.house.tree import ROOT

PAGE = (ROOT / "docs/kafka.md").read_text(encoding="utf-8")
SHELL = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TOML = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_certificate_that_the_page_makes_is_a_node_pem(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("NOT TESTED: the certificate of docs/kafka.md: no openssl")
    (command,) = [block for block in SHELL if block.startswith("openssl ")]
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True, capture_output=True)
    assert Credentials.load(SystemFiles(), str(tmp_path / "node.pem")).certificate
    assert not (tmp_path / "node.key").exists()


def test_the_kafka_toml_of_the_page_names_every_key(tmp_path: Path) -> None:
    (block,) = TOML
    shown, more = tomllib.loads(block), re.findall(r"^# ([\w, ]+):", block, re.MULTILINE)
    path = tmp_path / "kafka.toml"
    path.write_text(f"{block}\nnothing = 1\n", encoding="utf-8")
    with pytest.raises(AtomlogError, match="nothing: there is no such key; there are ") as caught:
        KafkaConfig.load(SystemFiles(), str(path), {})
    known = caught.value.message.rpartition("there are ")[2].split(", ")
    assert {*shown, *", ".join(more).split(", ")} == set(known)
