"""A network namespace for each broker and kernel and one for all others, on one bridge; iptables loses packets there.

Needs root, `ip` (iproute2) and `iptables`. The test itself, and the proxies in it, stay outside and reach everything.
"""

import ctypes
import importlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET
WITHIN: Final = "tests.chaos.networks:within"
FIRST_HOST: Final = 10


class Network:
    """`start` it, then each of `names` has an address and the host has `.host`; `close` removes everything."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._tag = f"ch{os.getpid()}"
        self._net = _free_net()
        self._made = False

    @property
    def host(self) -> str:
        return f"{self._net}.1"

    def address(self, name: str) -> str:
        return f"{self._net}.{FIRST_HOST + self._names.index(name)}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """What stands before a command that runs there."""
        return ("ip", "netns", "exec", self.place(name))

    def place(self, name: str) -> str:
        """The name of the namespace."""
        return f"{self._tag}-{name}"

    def start(self) -> None:
        bridge = self._tag
        self._made = True
        self.close()  # what an interrupted run of this process left
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.host}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for name in self._names:
            place, outer = self.place(name), f"{self._tag}{name}"
            _run("ip", "netns", "add", place)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", place)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            _run("ip", "-n", place, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("ip", "-n", place, "link", "set", "eth0", "up")
            _run("ip", "-n", place, "link", "set", "lo", "up")

    def close(self) -> None:
        """After its processes have ended."""
        if self._made:
            for name in self._names:
                subprocess.run(["ip", "netns", "del", self.place(name)], check=False, capture_output=True)
            subprocess.run(["ip", "link", "del", self._tag], check=False, capture_output=True)

    def lose(self, at: str, other: str, port: int | None = None) -> None:
        """Between the namespace of `at` and an address, or one port of it, no packet gets through, either way."""
        there = () if port is None else ("-p", "tcp", "--sport", str(port))
        back = () if port is None else ("-p", "tcp", "--dport", str(port))
        _run(*self.prefix(at), "iptables", "-w", "-A", "INPUT", "-s", other, *there, "-j", "DROP")
        _run(*self.prefix(at), "iptables", "-w", "-A", "OUTPUT", "-d", other, *back, "-j", "DROP")

    def heal(self) -> None:
        for name in self._names:
            _run(*self.prefix(name), "iptables", "-w", "-F")


@cache
def missing() -> str | None:
    """What this machine lacks; None when namespaces can be made and packets be lost in them."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "iptables") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install iproute2 iptables"
    attempt = Network(["try"])
    try:
        attempt.start()
        attempt.lose("try", attempt.host, 9)
    except AssertionError as error:
        return str(error)
    finally:
        attempt.close()
    return None


def within(place: str, target: str, *arguments: Any) -> Any:
    """In a forked process: enter the namespace, then be what `target` ("module:function") is."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{place}", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(descriptor, NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {place}")
    os.close(descriptor)
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


def _free_net() -> str:
    """Of the addresses that are kept for measuring networks, 198.18.0.0/15."""
    taken = subprocess.run(["ip", "-o", "-4", "addr"], check=False, capture_output=True, text=True).stdout
    candidates = [f"198.18.{(os.getpid() + more) % 256}" for more in range(256)]
    return next(net for net in candidates if f"{net}.1/" not in taken)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
