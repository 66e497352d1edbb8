"""kafka.toml: what is in it, what is refused, and that no secret is shown."""

from pathlib import Path

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.config import KafkaConfig, addresses
from atomlog.kernel.system import SystemFiles

SECRET = "correct horse battery"
FULL = """
bootstrap = "h1:9092, h2:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-256"
sasl_username = "node"
sasl_password_file = "password"
ssl_ca_file = "/etc/ca.pem"
ssl_certificate_file = "node.crt"
ssl_key_file = "node.key"
ssl_key_password_file = "key-password"
"""
SASL = 'bootstrap = "h:1"\nsecurity_protocol = "SASL_PLAINTEXT"\nsasl_username = "u"\n'


def load(folder: Path, text: str, environment: dict[str, str] | None = None) -> KafkaConfig:
    (folder / "kafka.toml").write_text(text, encoding="utf-8")
    return KafkaConfig.load(SystemFiles(), str(folder / "kafka.toml"), environment or {})


def refused(folder: Path, text: str, environment: dict[str, str] | None = None) -> AtomlogError:
    with pytest.raises(AtomlogError) as raised:
        load(folder, text, environment)
    assert SECRET not in repr(raised.value.to_dict())
    return raised.value


def test_everything_that_can_be_said_is_read_and_files_are_found_beside_it(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET + "\n", encoding="utf-8")
    (tmp_path / "key-password").write_text("k", encoding="utf-8")
    config = load(tmp_path, FULL)
    assert config == KafkaConfig(
        bootstrap=("h1:9092", "h2:9093"),
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="node",
        sasl_password=SECRET,
        ssl_ca_file="/etc/ca.pem",
        ssl_certificate_file=f"{tmp_path}/node.crt",
        ssl_key_file=f"{tmp_path}/node.key",
        ssl_key_password="k",
    )


def test_an_address_is_enough(tmp_path: Path) -> None:
    assert load(tmp_path, 'bootstrap = "localhost:9092"') == KafkaConfig(bootstrap=("localhost:9092",))


def test_no_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET, encoding="utf-8")
    (tmp_path / "key-password").write_text(SECRET, encoding="utf-8")
    config = load(tmp_path, FULL)
    assert SECRET not in f"{config} {config!r}"


def test_the_variable_counts_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of the file", encoding="utf-8")
    text = SASL + 'sasl_password_file = "password"\n'
    assert load(tmp_path, text, {"ATOMLOG_KAFKA_PASSWORD": SECRET}).sasl_password == SECRET
    assert load(tmp_path, text).sasl_password == "of the file"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "bootstrap"),
        ('bootstrap = ""', "bootstrap"),
        ('bootstrap = "h"', "bootstrap"),
        ("bootstrap = 9092", "bootstrap"),
        ('bootstrap = "h:1"\nboostrap = "x"', "boostrap"),
        ('bootstrap = "h:1"\nsecurity_protocol = "TLS"', "security_protocol"),
        ('bootstrap = "h:1"\nssl_ca_file = "ca.pem"', "ssl_ca_file"),
        ('bootstrap = "h:1"\nsasl_username = "u"', "sasl_username"),
        (SASL, "sasl_password_file"),
        (SASL + 'sasl_password_file = "absent"', "sasl_password_file"),
        (SASL + f'sasl_password = "{SECRET}"', "sasl_password"),
        (SASL + 'sasl_mechanism = "GSSAPI"\nsasl_password_file = "p"', "sasl_mechanism"),
        (SASL.replace("sasl_username", "#"), "sasl_username"),
        ('bootstrap = "h:1"\nsecurity_protocol = "SSL"\nssl_certificate_file = "c"', "ssl_key_file"),
        ("bootstrap = [", "TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, names: str) -> None:
    (tmp_path / "p").write_text("x", encoding="utf-8")
    error = refused(tmp_path, text)
    assert (error.code, names in error.message) == ("INVALID_INPUT", True), error


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"x" * 5_000])
def test_a_password_file_that_holds_no_line_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)
    error = refused(tmp_path, SASL + 'sasl_password_file = "p"')
    assert error.code == "INVALID_INPUT"
    assert "two" not in error.message


def test_no_file_is_said_to_be_no_file(tmp_path: Path) -> None:
    with pytest.raises(AtomlogError) as raised:
        KafkaConfig.load(SystemFiles(), str(tmp_path / "kafka.toml"), {})
    assert raised.value.code == "STORE_NOT_FOUND"


@pytest.mark.parametrize("text", ["h:0", "h:65536", "h:x", ":9092", "::1:9092", "[]:1", "h:1,,x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AtomlogError):
        addresses(text, "kafka")


def test_addresses_are_several_and_of_either_kind() -> None:
    assert addresses("a.b:9092, [::1]:9093 ,10.0.0.1:1,", "kafka") == ("a.b:9092", "[::1]:9093", "10.0.0.1:1")
