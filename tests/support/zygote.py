"""Processes of the program without its start-up: forked from one that has imported everything and opened nothing.

`zygote()` is the one of this test process. It starts no thread and opens no store, so a process that is forked from it
is what a new one would be, but for half a second of imports. `Forked` has what `asyncio.subprocess.Process` has of
it: a pid that signals reach, pipes, an exit code.
"""

import asyncio
import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.commands import ROOT

MESSAGE_BYTES_MAX: Final = 128 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
COMMAND: Final = "tests.support.zygote:command"  # the target that is the command line
PRELOADED: Final = (
    *("atomlog.consumers.cli.main", "atomlog.client", "tests.support.store_process"),
    *("atomlog.consumers.cli.cluster", "atomlog.consumers.cluster.routed", "atomlog.consumers.cluster.presence"),
)


class Forked:
    """A forked process. `stdin` and `stdout` are pipes; its stderr goes to a file."""

    def __init__(self, made_by: "Zygote", pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        """Use `Zygote.fork`."""
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._made_by = made_by

    def send_signal(self, number: int) -> None:
        """Nothing once its end is known: the number may be another's by then."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        """The exit code, minus the signal where one ended it."""
        if self.returncode is None:
            descriptor = os.pidfd_open(self.pid)  # of a child that nobody has waited for: its number is still its own
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
            if self.returncode is None:
                self.returncode = self._made_by.exit_code(self.pid)
        self.stdin.close()
        return self.returncode

    async def killed(self) -> None:
        """SIGKILL, and gone on return."""
        self.kill()
        await self.wait()


class Zygote:
    """The other side of `main`. `environment` is there from the first instruction on, e.g. for LD_PRELOAD."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environment or {})},
        )
        theirs.close()

    async def fork(
        self,
        target: str,
        *arguments: Any,
        log: Path,
        environment: Mapping[str, str] | None = None,
        logs_stdout: bool = False,
    ) -> Forked:
        """A process that runs `module:function` with these arguments (of JSON); what it returns is its exit code.

        `environment` is laid over this process's; stderr is appended to `log`, with `logs_stdout` all that it says.
        """
        loop = asyncio.get_running_loop()
        child_reads, we_write = os.pipe()
        we_read, child_writes = os.pipe()
        with log.open("ab") as messages:
            request = {"target": target, "arguments": arguments, "environment": {**os.environ, **(environment or {})}}
            says = messages.fileno()
            pid = self._ask(request, [child_reads, says if logs_stdout else child_writes, says])
        os.close(child_reads)
        os.close(child_writes)
        stdout = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(we_read, "rb"))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(we_write, "wb")
        )
        return Forked(self, pid, asyncio.StreamWriter(transport, protocol, None, loop), stdout)

    def exit_code(self, pid: int) -> int:
        """Of a process that has ended."""
        return self._ask({"wait": pid})

    def close(self) -> None:
        """Ends every process that was forked, too."""
        self._socket.close()
        self._process.wait()

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(MESSAGE_BYTES_MAX)
        assert answer, "the zygote is gone"
        return int(answer)


@cache
def zygote() -> Zygote:
    """The one of this process, started when it is first needed."""
    made = Zygote()
    atexit.register(made.close)
    return made


# ---- in the zygote itself


def main() -> int:
    """Fork for whoever holds the other end of a socket, until it is closed; then nothing that was forked lives on."""
    for module in PRELOADED:
        importlib.import_module(module)
    control = socket.socket(fileno=int(sys.argv[1]))
    children: set[int] = set()
    while True:
        raw, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 3)
        if not raw:
            break
        request = json.loads(raw)
        if "wait" in request:
            children.discard(request["wait"])
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                control.close()
                return _run(request, descriptors)
            children.add(answer)
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(str(answer).encode())
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return 0


def _run(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    module, _, name = request["target"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return int(function(*request["arguments"]) or 0)


def command(*arguments: str) -> None:
    """`COMMAND`: the command line with these arguments."""
    from atomlog.consumers.cli.main import main as atomlog

    sys.argv = ["atomlog", *arguments]
    atomlog()


if __name__ == "__main__":
    sys.exit(main())
