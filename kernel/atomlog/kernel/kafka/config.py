"""How to reach the brokers: `kafka.toml` and the environment. Secrets come from files or the environment alone."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import shown
from atomlog.kernel.ports import Files

PASSWORD_VARIABLE: Final = "ATOMLOG_KAFKA_PASSWORD"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_SASL_KEYS: Final = ("sasl_mechanism", "sasl_username", "sasl_password_file")
_SSL_KEYS: Final = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file", "ssl_key_password_file")
_KEYS: Final = ("bootstrap", "security_protocol", *_SASL_KEYS, *_SSL_KEYS)
_PORT_MAX: Final = 65_535
_SECRET_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """Addresses as `host:port`, and how to be trusted there. Paths are absolute or from the working directory."""

    bootstrap: tuple[str, ...]
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca_file: str | None = None
    ssl_certificate_file: str | None = None
    ssl_key_file: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    client_id: str = "atomlog"

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @classmethod
    def load(cls, files: Files, path: str, environment: Mapping[str, str]) -> "KafkaConfig":
        """The file at `path`. Files that it names are found from its directory.

        Raises:
            INVALID_INPUT: naming the key that is unknown, missing, of no use, or wrong.
            STORE_NOT_FOUND: there is no such file.
        """
        table = _table(files, path)
        directory = path.rpartition("/")[0]
        protocol = _choice(table, path, "security_protocol", PROTOCOLS) or "PLAINTEXT"
        uses_sasl, uses_tls = protocol.startswith("SASL"), protocol.endswith("SSL")
        _only_where_used(table, path, protocol, _SASL_KEYS if not uses_sasl else ())
        _only_where_used(table, path, protocol, _SSL_KEYS if not uses_tls else ())
        if bool(table.get("ssl_certificate_file")) != bool(table.get("ssl_key_file")):
            raise _wrong(path, "ssl_key_file", "ssl_certificate_file and ssl_key_file come together")
        return cls(
            bootstrap=addresses(_text(table, path, "bootstrap") or "", f"{path}: bootstrap"),
            security_protocol=protocol,
            sasl_mechanism=(_choice(table, path, "sasl_mechanism", MECHANISMS) or MECHANISMS[1]) if uses_sasl else None,
            sasl_username=_username(table, path) if uses_sasl else None,
            sasl_password=_password(files, table, path, environment) if uses_sasl else None,
            ssl_ca_file=_beside(directory, _text(table, path, "ssl_ca_file")),
            ssl_certificate_file=_beside(directory, _text(table, path, "ssl_certificate_file")),
            ssl_key_file=_beside(directory, _text(table, path, "ssl_key_file")),
            ssl_key_password=_secret(files, table, path, "ssl_key_password_file"),
        )


def addresses(text: str, path: str) -> tuple[str, ...]:
    """`host:port,host:port` in parts; INVALID_INPUT naming `path`. IPv6 in brackets."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        host, colon, port = part.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not bare or not colon or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise fail("INVALID_INPUT", f"{path}: {shown(part)} is no address; write host:port")
        if bare == host and ":" in host:
            raise fail("INVALID_INPUT", f"{path}: {shown(part)} is no address; write IPv6 as [address]:port")
    if not parts:
        raise fail("INVALID_INPUT", f"{path}: there is no address; write host:port, several with commas between")
    return parts


def _table(files: Files, path: str) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(files.read(path).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise fail("STORE_NOT_FOUND", f"{path}: there is no such file; it says how to reach the brokers") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise fail("INVALID_INPUT", f"{path} is no TOML: {error}") from None
    for key in table:
        if key == "sasl_password":
            raise _wrong(
                path, key, f"a password stands in a file of its own (sasl_password_file) or {PASSWORD_VARIABLE}"
            )
        if key not in _KEYS:
            raise _wrong(path, key, f"there is no such key; there are {', '.join(_KEYS)}")
    return table


def _text(table: Mapping[str, Any], path: str, key: str) -> str | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _wrong(path, key, f"{shown(value)} is no text")
    return value


def _choice(table: Mapping[str, Any], path: str, key: str, choices: tuple[str, ...]) -> str | None:
    value = _text(table, path, key)
    if value is not None and value not in choices:
        raise _wrong(path, key, f"{shown(value)} is none of {', '.join(choices)}")
    return value


def _only_where_used(table: Mapping[str, Any], path: str, protocol: str, unused: tuple[str, ...]) -> None:
    for key in unused:
        if key in table:
            raise _wrong(path, key, f"it has no use with security_protocol {protocol}")


def _username(table: Mapping[str, Any], path: str) -> str:
    name = _text(table, path, "sasl_username")
    if name is None:
        raise _wrong(path, "sasl_username", "it is missing")
    return name


def _password(files: Files, table: Mapping[str, Any], path: str, environment: Mapping[str, str]) -> str:
    """The variable counts before the file."""
    password = environment.get(PASSWORD_VARIABLE) or _secret(files, table, path, "sasl_password_file")
    if not password:
        raise _wrong(path, "sasl_password_file", f"there is no password; name its file, or set {PASSWORD_VARIABLE}")
    return password


def _secret(files: Files, table: Mapping[str, Any], path: str, key: str) -> str | None:
    """The content of the file that `key` names, without the line end. No error shows any of it."""
    name = _beside(path.rpartition("/")[0], _text(table, path, key))
    if name is None:
        return None
    try:
        secret = files.read(name).decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise _wrong(path, key, f"{name}: {error.strerror or 'it cannot be read'}") from None
    except UnicodeDecodeError:
        raise _wrong(path, key, f"{name} is no text") from None
    if not secret or len(secret) > _SECRET_BYTES_MAX or "\n" in secret:
        raise _wrong(path, key, f"{name} is not one line with a secret")
    return secret


def _beside(directory: str, name: str | None) -> str | None:
    return name if name is None or name.startswith("/") or not directory else f"{directory}/{name}"


def _wrong(path: str, key: str, what: str) -> AtomlogError:
    message = f"{path}: {key}: {what}"
    return fail("INVALID_INPUT", message, details=[{"path": key, "code": "INVALID_INPUT", "message": what}])
