"""Brokers that ask who you are: TLS by a certificate authority of the test, SCRAM users, ACLs.

Clients speak SASL_SSL; nodes among themselves TLS with certificates of both sides. `admin` may do everything, another
user nothing until `SecureBrokers.allow` says so.
"""

import datetime
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.kafka.brokers import Brokers, Security
from tests.house.tree import ROOT
from tests.support.kafka import own_brokers

ADMIN, ADMIN_PASSWORD = "admin", "admin-secret"
NODE_NAME = "broker"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SECURITY_PREFIXES = ("ssl.", "sasl.", "listener.name.", "authorizer.", "super.", "allow.")
LIFE = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority: `file` is what clients trust."""

    file: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(self, name: str, file: Path, *, address: str = "127.0.0.1") -> Path:
        """Writes a private key and its certificate for `name` at `address` and localhost into one PEM file."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(address))]
        made = _certificate(name, self.certificate.subject, key.public_key())
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        file.write_bytes(_private(key) + _pem(made.sign(self.key, hashes.SHA256())))
        file.chmod(0o600)
        return file


def make_authority(directory: Path, name: str = "authority") -> Authority:
    """A new authority, with `<name>.pem` in `directory`."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = _certificate(name, _named(name), key.public_key())
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = made.sign(key, hashes.SHA256())
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}.pem"
    file.write_bytes(_pem(certificate))
    return Authority(file=file, certificate=certificate, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureBrokers:
    """`with secure_brokers(…) as brokers` starts them; `users` are names with their passwords, `admin` among them."""

    brokers: Brokers
    authority: Authority
    users: Mapping[str, str]
    admin_config: Path  # for Kafka's own tools, which log in as admin

    @property
    def bootstrap(self) -> str:
        return self.brokers.bootstrap

    def allow(self, user: str, *arguments: str) -> None:
        """Adds ACLs, e.g. `allow("kernel", "--operation", "Write", "--topic", "atomlog.atoms")`."""
        self.acls("--add", "--allow-principal", f"User:{user}", *arguments)

    def acls(self, *arguments: str) -> str:
        """Kafka's own ACL command, as admin: what it printed."""
        whole = ("--bootstrap-server", self.bootstrap, "--command-config", str(self.admin_config), *arguments)
        return self.brokers.tool("org.apache.kafka.tools.AclCommand", *whole)

    def __enter__(self) -> "SecureBrokers":
        self.brokers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.brokers.close()


def secure_brokers(directory: Path, *, users: Mapping[str, str], count: int = 1) -> SecureBrokers:
    """Not started yet. Every user can log in with SCRAM-SHA-256 and SCRAM-SHA-512."""
    authority = make_authority(directory)
    node_file = authority.issue(NODE_NAME, directory / "node.pem")
    everybody = {ADMIN: ADMIN_PASSWORD, **users}
    scram = [
        argument
        for name, password in everybody.items()
        for mechanism in MECHANISMS
        for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]
    security = Security(
        clients_protocol="SASL_SSL",
        nodes_protocol="SSL",
        properties=_node_properties(authority, node_file),
        format_arguments=tuple(scram),
        tls=ssl.create_default_context(cafile=str(authority.file)),
    )
    admin_config = directory / "admin.properties"
    admin_config.write_text(client_properties(authority, ADMIN, ADMIN_PASSWORD), encoding="utf-8")
    brokers = own_brokers(directory, count=count, security=security)
    return SecureBrokers(brokers=brokers, authority=authority, users=everybody, admin_config=admin_config)


def client_properties(authority: Authority, user: str, password: str) -> str:
    """What a Java client needs to log in."""
    login = f'{JAAS} username="{user}" password="{password}";'
    lines = {"security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISMS[0], "sasl.jaas.config": login}
    lines |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.file)}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def example_properties() -> dict[str, str]:
    """What deploy/secure/broker.properties says of who is who and who may do what."""
    lines = (ROOT / "deploy/secure/broker.properties").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs if name.startswith(SECURITY_PREFIXES)}


def _node_properties(authority: Authority, node_file: Path) -> dict[str, str]:
    """The example's, with the files of this test and one more mechanism."""
    logins = {f"listener.name.clients.{name.lower()}.sasl.jaas.config": f"{JAAS};" for name in MECHANISMS}
    files = {"ssl.keystore.location": str(node_file), "ssl.truststore.location": str(authority.file)}
    return {**example_properties(), **logins, **files, "sasl.enabled.mechanisms": ",".join(MECHANISMS)}


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(issuer, _named(name), key, x509.random_serial_number())
    return made.not_valid_before(now - LIFE).not_valid_after(now + LIFE)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
