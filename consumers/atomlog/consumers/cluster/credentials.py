"""`node.pem`: one private key and its self-signed certificate. Whoever holds the file is a node of the cluster.

It is made once, by the `init` that makes the cluster, and copied to every other node. The certificate names nobody and
does not end: it is not looked up anywhere, both sides of a connection compare it with their own.
"""

import datetime
import hashlib
import ssl
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import Files

BYTES_MAX: Final = 64 * 1024
WAY_OUT: Final = "copy node.pem from another node of the cluster (`atomlog init --kafka … --node-pem FILE` does)"

_NAME: Final = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "atomlog node")])
_FROM: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL: Final = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a node shows, and the only thing that it trusts. `certificate` is DER."""

    path: str
    certificate: bytes
    asking: ssl.SSLContext = field(repr=False)
    answering: ssl.SSLContext = field(repr=False)

    @classmethod
    def load(cls, files: Files, path: str) -> "Credentials":
        """Read node.pem.

        Raises:
            STORE_NOT_FOUND: it is not there.
            INVALID_INPUT: other users can read it, or it is not one key and its certificate.
        """
        return cls._of(path, read(files, path))

    @classmethod
    def _of(cls, path: str, raw: bytes) -> "Credentials":
        try:
            certificate = ssl.PEM_cert_to_DER_cert(_certificate(raw))
            return cls(
                path=path,
                certificate=certificate,
                asking=_context(ssl.PROTOCOL_TLS_CLIENT, path, certificate),
                answering=_context(ssl.PROTOCOL_TLS_SERVER, path, certificate),
            )
        except (ssl.SSLError, ValueError) as error:
            raise _wrong(path, f"is not a private key with its certificate: {error}") from None

    def is_own(self, connected: object) -> bool:
        """Whether a finished handshake showed this very certificate, not one that it signed."""
        shown = connected.getpeercert(binary_form=True) if isinstance(connected, ssl.SSLObject) else None
        return shown == self.certificate


def create(files: Files, path: str) -> None:
    """Draw a key, sign its certificate, and write both with mode 0600, durable on return."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files.write_atomic(path, private + certificate.public_bytes(serialization.Encoding.PEM), mode=0o600)


def secret(files: Files, path: str, purpose: bytes) -> bytes:
    """32 bytes that every holder of this node.pem has and nobody else, others for each purpose. Raises as `load`."""
    try:
        key = serialization.load_pem_private_key(read(files, path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _wrong(path, f"is not a private key with its certificate: {error}") from None
    private = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return hashlib.sha256(purpose + private).digest()


def read(files: Files, path: str) -> bytes:
    """The bytes of a node.pem that only its user can read."""
    try:
        mode = files.mode(path)
        raw = files.read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise fail(
            "STORE_NOT_FOUND", f"{path} is not there: without it no other node can be reached; {WAY_OUT}"
        ) from None
    except PermissionError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}; run as the user that it belongs to") from None
    if mode & 0o077:
        raise _wrong(path, f"can be read by other users (mode {mode:04o}); run `chmod 600 {path}`")
    if len(raw) > BYTES_MAX:
        raise _wrong(path, f"has {len(raw)} bytes, more than {BYTES_MAX}; {WAY_OUT}")
    return raw


def _context(protocol: int, path: str, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it names nobody: what counts is that it is this one
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(path)
    context.load_verify_locations(cadata=certificate)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would show no certificate
    return context


def _certificate(raw: bytes) -> str:
    """The one certificate in a PEM file."""
    if raw.count(_BEGIN) != 1 or raw.count(_END) != 1:
        raise ValueError("one certificate is expected")
    return raw[raw.index(_BEGIN) : raw.index(_END) + len(_END)].decode("ascii")


def _wrong(path: str, why: str) -> AtomlogError:
    return fail("INVALID_INPUT", f"{path} {why}", details=[{"path": path, "code": "INVALID_INPUT", "message": why}])
