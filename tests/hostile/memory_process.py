"""Hostile cases in a process whose memory is measured, and bounded: `python -m tests.hostile.memory_process FOLDER`.

Each case prints a line of JSON: its name, the bytes of its input, and by how much the resident memory rose at its peak.
The limit on the address space ends a case that takes memory without end.
"""

import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from atomlog.client import AtomlogError, Store
from atomlog.consumers.cli.main import main as command
from atomlog.consumers.owner_socket import NAME

SPACE = "notes"
MIB = 1024 * 1024
ADDRESS_SPACE_BYTES = 4 * 1024 * MIB
PAGE_BYTES = resource.getpagesize()

Case = Callable[[Store, Path], int]
"""Does it, and gives the bytes of what was handed over."""


def batch(key: str, *changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"space": SPACE, "idempotency_key": key, "changes": list(changes), **more}


def note(text: str, **more: Any) -> dict[str, Any]:
    return {"op": "create", "schema": "source", "value": {"text": text}, **more}


def refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except AtomlogError:
        return
    raise AssertionError("it was taken")


def deep(store: Store, folder: Path) -> int:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    refused(lambda: store.write(batch("deep", {"op": "create", "schema": "other", "value": value})))
    return 10_000 * 56


def wide(store: Store, folder: Path) -> int:
    """The same list two million times: a million values for some bytes each."""
    shared = ["x"] * 1_000
    refused(lambda: store.write(batch("wide", {"op": "create", "schema": "other", "value": [shared] * 3_000})))
    return 3_000 * 8


def many_flaws(store: Store, folder: Path) -> int:
    bad = ["\ud800"] * 200_000
    refused(lambda: store.write(batch("flaws", {"op": "create", "schema": "other", "value": bad})))
    return 200_000 * 8


def long_text(store: Store, folder: Path) -> int:
    text = "字" * (8 * MIB // 3)
    written = store.write(batch("long", note(text)))
    (made,) = written.results
    assert store.get(made.atom, at_least=written.receipt, timeout_s=60).atoms[0].value["text"] == text
    return 8 * MIB


def long_texts_that_wait_to_be_embedded(store: Store, folder: Path) -> int:
    """Together they are more than may be held at once."""
    for n in range(12):
        store.write(batch(f"waits {n}", note(f"{n} " + "wait " * (4 * MIB // 5))))
    for _ in range(6_000):
        store.wait_until_current(60)
        if store.recall("wait", space=SPACE, timeout_s=60).diagnostics.unembedded == 0:
            break
    return 4 * MIB  # one is opened after the other


def a_text_beyond_the_limit(store: Store, folder: Path) -> int:
    text = "x" * (65 * MIB)
    refused(lambda: store.write(batch("beyond", note(text))))
    return len(text)


def many_numbers(store: Store, folder: Path) -> int:
    numbers = [0.5] * 1_000_000
    refused(lambda: store.write(batch("numbers", note("x", vectors={"hashing/1/512/cosine": numbers}))))
    refused(lambda: store.recall(vectors={"hashing/1/512/cosine": numbers}, space=SPACE))
    return 8_000_000


def a_long_query(store: Store, folder: Path) -> int:
    refused(lambda: store.recall("query " * 2_000_000, space=SPACE))
    store.recall("k" * 65_000, space=SPACE)
    return 12_000_000


def a_line_without_end(store: Store, folder: Path) -> int:
    """One line of 80 MB to the command: it is refused, not held."""
    file = folder / "endless.jsonl"
    with file.open("wb") as lines:
        for _ in range(80):
            lines.write(b"x" * MIB)
        lines.write(b'\n{"id": "after", "text": "after"}\n')
    done = CliRunner().invoke(
        command, ["import", "jsonl", str(file), "--space", SPACE, "--keep-going", "--store", str(folder / "imported")]
    )
    assert done.exit_code == 2, done.output
    file.unlink()
    return MIB  # what may be held of it is bounded by less than the line


def brackets(store: Store, folder: Path) -> int:
    """JSON that becomes many small objects."""
    file = folder / "brackets.jsonl"
    file.write_text('{"id": "a", "value": {"a": [' + "[]," * 700_000 + "0]}}\n" + "[" * 2_000_000 + "\n")
    done = CliRunner().invoke(
        command, ["import", "jsonl", str(file), "--space", SPACE, "--keep-going", "--store", str(folder / "imported")]
    )
    assert done.exit_code == 2, done.output
    return file.stat().st_size


def frames(store: Store, folder: Path) -> int:
    """Lengths that promise 4 GiB, on many connections at once, and frames that never end."""
    peers: list[socket.socket] = []
    for _ in range(50):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptor = os.open(store.directory, os.O_RDONLY | os.O_DIRECTORY)
        peer.connect(f"/proc/self/fd/{descriptor}/{NAME}")
        os.close(descriptor)
        peer.sendall(b"\xff\xff\xff\xff{}" if len(peers) % 2 else struct.pack(">I", 60 * MIB) + b"[" * 1_000)
        peers.append(peer)
    store.write(batch("beside frames", note("beside")))
    for peer in peers:
        peer.close()
    return 50 * 1_000


CASES: dict[str, Case] = {
    "ten thousand levels": deep,
    "three million values that are one": wide,
    "two hundred thousand flaws": many_flaws,
    "a text of 8 MiB": long_text,
    "texts of 48 MiB that wait to be embedded": long_texts_that_wait_to_be_embedded,
    "a text beyond the limit": a_text_beyond_the_limit,
    "a million numbers": many_numbers,
    "a query of 12 MB": a_long_query,
    "a line without end": a_line_without_end,
    "seven hundred thousand brackets": brackets,
    "frames that lie about their length": frames,
}


def resident_bytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def rise(case: Case, store: Store, folder: Path) -> tuple[int, int]:
    """(bytes handed over, by how many bytes the resident memory rose at its peak)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident_bytes("VmRSS")
    handed_over = case(store, folder)
    return handed_over, resident_bytes("VmHWM") - before


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    folder = Path(sys.argv[1])
    with Store.open(str(folder / "store")) as store:
        store.write(batch("first", note("first")))
        store.recall("first", space=SPACE, timeout_s=60)
        for name, case in CASES.items():
            handed_over, rose = rise(case, store, folder)
            print(json.dumps({"case": name, "handed_over": handed_over, "rose": rose}), flush=True)


if __name__ == "__main__":
    main()
