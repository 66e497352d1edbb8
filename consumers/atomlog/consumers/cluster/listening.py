"""Where a process of a shared store listens, and what others are told of it: options of `kernel` and `consume`."""

import re
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.ids import invalid, shown

NAME_MAX: Final = 200
PORT_MAX: Final = 65_535
EVERYWHERE: Final = ("0.0.0.0", "::")
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.%]{2,64}\]|[0-9A-Za-z._-]{1,253}")
_ADDRESS: Final = re.compile(rf"({_HOST.pattern}):([0-9]{{1,5}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """`port` 0 = a free one. `advertised_host`: what others connect to; None = `host`."""

    host: str
    port: int
    advertised_host: str | None


def listening(listen: str, advertise: str | None) -> Listening:
    """From HOST:PORT, and the host that others are told, without a port. INVALID_INPUT names the one that is wrong."""
    found = _ADDRESS.fullmatch(listen)
    if found is None or int(found[2]) > PORT_MAX:
        raise invalid("listen", f"{shown(listen)} is not HOST:PORT")
    host = found[1].strip("[]")
    if advertise is None and host in EVERYWHERE:
        message = f"{host} is every address of this machine and none that others can connect to"
        raise invalid("advertise", f"{message}; name one of them with --advertise")
    if advertise is not None and not _HOST.fullmatch(advertise):
        raise invalid("advertise", f"{shown(advertise)} is no host; the port is that of --listen")
    told = None if advertise is None else advertise.strip("[]")
    return Listening(host=host, port=int(found[2]), advertised_host=told)


def checked_name(name: str) -> str:
    """INVALID_INPUT for what would not be told from an endpoint, or cannot be shown."""
    if not name or len(name) > NAME_MAX or not name.isprintable() or name.startswith("tls:"):
        message = f"{shown(name)} is no name: up to {NAME_MAX} printable characters, not beginning with tls:"
        raise invalid("name", message)
    return name
