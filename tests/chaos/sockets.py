"""Which TCP connections a process has, so that a proxy knows whose bytes it carries."""

import contextlib
import os
import socket
from pathlib import Path


def addresses_of(pid: int) -> frozenset[str]:
    """This end of each of its IPv4 connections, "host:port"; nothing of a process that is gone."""
    try:
        mine = set(_sockets(pid))
        rows = Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]
    except OSError:
        return frozenset()
    parts = [row.split() for row in rows]
    return frozenset(_text(part[1]) for part in parts if part[9] in mine)


def _sockets(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            kind, _, inode = os.readlink(f"/proc/{pid}/fd/{name}").partition(":")
            if kind == "socket":
                found.append(inode.strip("[]"))
    return found


def _text(address: str) -> str:
    """From "0100007F:1F90", bytes of the address in the machine's order."""
    host, _, port = address.partition(":")
    return f"{socket.inet_ntoa(int(host, 16).to_bytes(4, 'little'))}:{int(port, 16)}"
