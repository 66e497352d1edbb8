"""Whether the brokers are trusted and trust us: TLS, and what a failed connection means."""

import ssl
from typing import Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.values import Address

_SASL_DENIED: Final = (29, 31, 58)
_SASL_WRONG: Final = (33, 34)


def tls_context(config: KafkaConfig) -> ssl.SSLContext | None:
    """None without TLS. INVALID_INPUT naming the file that cannot be used."""
    if not config.uses_tls:
        return None
    names = [name for name in (config.ssl_ca_file, config.ssl_certificate_file, config.ssl_key_file) if name]
    password = config.ssl_key_password or ""  # never None: OpenSSL would ask on the terminal
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=config.ssl_ca_file)
        if config.ssl_certificate_file:
            context.load_cert_chain(config.ssl_certificate_file, config.ssl_key_file, lambda: password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise fail("INVALID_INPUT", f"TLS: {reason}; look at {', '.join(names) or 'the system certificates'}") from None
    return context


def of_connecting(error: Exception, address: Address, config: KafkaConfig, code: int | None) -> AtomlogError:
    """What the caller of a failed connection is told; `code` is Kafka's, when the broker gave one."""
    where = f"broker {address}"
    hint = f"does the port expect {config.security_protocol}?"
    if code in _SASL_DENIED:
        return fail("ACCESS_DENIED", f"{where} does not take the user {config.sasl_username!r}: {message_of(error)}")
    if code in _SASL_WRONG:
        return fail("INVALID_INPUT", f"{where}: {message_of(error)}; sasl_mechanism is {config.sasl_mechanism}")
    if isinstance(error, ssl.SSLCertVerificationError):
        ca = config.ssl_ca_file or "the system certificates"
        return fail("INVALID_INPUT", f"{where}: its certificate is not trusted by {ca}: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return fail("INVALID_INPUT", f"{where}: TLS failed: {error.reason or message_of(error)}; {hint}")
    if isinstance(error, TimeoutError):
        return unavailable(f"{where}: no answer to the first request; {hint}")
    if isinstance(error, OSError) and not isinstance(error, ConnectionResetError | BrokenPipeError):
        return unavailable(f"{where}: {error.strerror or message_of(error)}")
    return unavailable(f"{where} closed the connection at the first request; {hint}")


def unavailable(message: str) -> AtomlogError:
    return fail("KAFKA_UNAVAILABLE", message, retry_after_ms=1_000)


def message_of(error: BaseException) -> str:
    """Its message, bounded."""
    return str(error)[:300] or type(error).__name__
