"""Ten thousand levels of nesting, wherever JSON comes in: refused with a typed error, and the interpreter lives on."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.client import AsyncStore, AtomlogError, Store
from atomlog.consumers.owner_socket import NAME
from atomlog.kernel.errors import CODES
from tests.consumers.cli.driving import atomlog
from tests.consumers.test_hostile_arguments import PLACES
from tests.hostile.asking import SPACE, a_batch, note, refusal, write

DEEP: Final = 10_000
LISTS: Final = "[" * DEEP + "]" * DEEP
OBJECTS: Final = '{"a":' * DEEP + "1" + "}" * DEEP
UNCLOSED: Final = "[" * DEEP
TEXTS: Final = {"lists": LISTS, "objects": OBJECTS, "never closed": UNCLOSED}
every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


def nested(of: Callable[[Any], Any]) -> Any:
    found: Any = "end"
    for _ in range(DEEP):
        found = of(found)
    return found


VALUES: Final[dict[str, Any]] = {
    "lists": nested(lambda inner: [inner]),
    "tuples": nested(lambda inner: (inner,)),
    "objects": nested(lambda inner: {"a": inner}),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("place", PLACES)
def test_a_deep_argument_from_python_gets_an_answer_or_a_typed_error(store: Store, place: str, kind: str) -> None:
    try:
        PLACES[place](store, VALUES[kind])
    except AtomlogError as error:
        assert error.code in CODES
        assert len(error.message) < 2_000


@pytest.mark.parametrize("kind", VALUES)
def test_a_deep_value_is_refused_with_its_path_and_the_next_batch_is_written(store: Store, kind: str) -> None:
    for batch in (
        a_batch({"op": "create", "schema": "other", "value": VALUES[kind]}),
        a_batch({"op": "create", "schema": "other", "value": {"a": [VALUES[kind]]}}),
        {**a_batch(note("x")), "changes": VALUES[kind]},
        {**a_batch(note("x")), "preconditions": VALUES[kind]},
    ):
        error = refusal(lambda batch=batch: store.write(batch))  # type: ignore[misc]
        assert error.code in ("BOUND_EXCEEDED", "INVALID_INPUT")
        assert error.details[0]["path"]
    assert write(store, note("after"))


def test_the_deepest_value_that_is_taken_can_be_read_in_every_way_and_one_deeper_is_refused(store: Store) -> None:
    value: Any = "end"
    for _ in range(16):
        value = {"a": [value]}
    (made,) = write(store, {"op": "create", "schema": "other", "value": value})
    page = store.get(made["atom"])
    assert page.atoms[0].value == value
    assert store.replay(page.receipt).body() == page.body()
    assert json.loads(page.body())["atoms"][0]["value"] == value
    error = refusal(lambda: write(store, {"op": "create", "schema": "other", "value": [value]}))
    assert (error.code, error.details[0]["found"], error.details[0]["limit"]) == ("BOUND_EXCEEDED", 33, 32)


@every_text
def test_a_deep_line_on_the_command_line_is_one_refused_line(tmp_path: Path, text: str) -> None:
    good = json.dumps(a_batch(note("good", key="good")))
    deep = good.replace('"good", "schema"', "1").replace('{"text": "good"}', text)
    done = atomlog("write", "--keep-going", "--json", stdin=f"{text}\n{deep}\n{good}\n", store=tmp_path / "s")
    assert [line["ok"] for line in done.jsons] == [False, False, True]
    assert all(line["error"]["code"] in ("BOUND_EXCEEDED", "INVALID_INPUT") for line in done.jsons[:2])
    assert (done.code, "Traceback" in done.err) == (2, False)


@every_text
def test_a_deep_line_of_an_imported_file_is_one_refused_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(f'{text}\n{{"id": "a", "value": {text}}}\n{{"id": "b", "text": "good"}}\n')
    done = atomlog("import", "jsonl", file, "--space", SPACE, "--keep-going", store=tmp_path / "s")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert atomlog("get", "key:b", "--space", SPACE, store=tmp_path / "s").out.rstrip().endswith("good")


@every_text
def test_a_deep_option_is_a_wrong_command_line(tmp_path: Path, text: str) -> None:
    store, file = tmp_path / "s", tmp_path / "vector.json"
    atomlog("write", stdin=json.dumps(a_batch(note("x", key="x"))), store=store)
    file.write_text(text)
    for words in (
        ["recall", "x", "--scope", text],
        ["recall", "--vector", file],
        ["get", "key:x", "--at-least", text],
        ["get", text if text.startswith("{") else "{" + text],
        ["get", "key:x", "--continue", text],
        ["receipt", "show", text],
        ["get", f"{text}#a1"],
    ):
        done = atomlog(*words, store=store)
        assert (done.code in (2, 5), "Traceback" in done.err) == (True, False), (words[0], done.code, done.err[:300])


FILES: Final = (
    "store.json",
    "log/0/owner.json",
    "projections/ids/health.json",
    "projections/ids/CURRENT",
    "master.key",
)


@pytest.mark.parametrize("name", FILES)
@every_text
def test_a_file_of_the_store_that_holds_deep_json_is_told_or_does_not_matter(
    tmp_path: Path, name: str, text: str
) -> None:
    folder = tmp_path / "s"
    with Store.open(str(folder)) as store:
        write(store, note("x", key="x"))
    (folder / name).write_text(text)
    try:
        with Store.open(str(folder)) as store:
            store.get("key:x", space=SPACE, timeout_s=30)
            store.status()
    except AtomlogError as error:
        assert error.code in ("CORRUPT", "INVALID_INPUT")
        assert len(error.message) < 2_000


class Peer:
    """A process of the same user that speaks to the owner's socket as it likes."""

    def __init__(self, folder: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._socket.connect(f"/proc/self/fd/{descriptor}/{NAME}")
        finally:
            os.close(descriptor)

    def say(self, raw: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(raw)) + raw)

    def said(self) -> Any:
        """The next answer, None when the owner has ended the connection."""
        head = self._exactly(4)
        return None if len(head) < 4 else json.loads(self._exactly(struct.unpack(">I", head)[0]))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (part := self._socket.recv(size - len(found))):
            found += part
        return found

    def close(self) -> None:
        self._socket.close()


def frames() -> dict[str, bytes]:
    inner = "[" * 300 + "]" * 300  # which the parser of frames takes, and the writer would not
    batch = json.dumps(a_batch(note("x")))
    found = {f"{name} alone": text for name, text in TEXTS.items()}
    found |= {f"{name} as a batch": f'{{"id": 1, "op": "write", "batch": {text}}}' for name, text in TEXTS.items()}
    found |= {f"{name} as an id": f'{{"id": {text}, "op": "places"}}' for name, text in TEXTS.items()}
    found["an id of 300 levels"] = f'{{"id": {inner}, "op": "places"}}'
    found["an id of 300 levels in an error"] = f'{{"id": {inner}, "op": "nothing"}}'
    found["an op of 300 levels"] = f'{{"id": 1, "op": {inner}}}'
    found["a batch of 300 levels"] = f'{{"id": 1, "op": "write", "batch": {batch[:-1]}, "session": {inner}}}}}'
    found["a key of 300 levels"] = f'{{"id": 1, "op": "outcome", "space": "notes", "key": {inner}}}'
    found["no id"] = '{"op": "places"}'
    found["nothing"] = ""
    found["no object"] = "[1]"
    found["no UTF-8"] = ""
    return {name: b"\xff\xfe" if name == "no UTF-8" else text.encode() for name, text in found.items()}


@pytest.mark.parametrize("name", frames())
def test_a_frame_that_is_no_request_ends_at_most_its_own_connection(store: Store, name: str) -> None:
    """Beside it another process waits for its answer; and what the stranger asked before is answered."""
    other, stranger = Peer(store.directory), Peer(store.directory)
    try:
        stranger.say(b'{"id": 7, "op": "places"}')
        assert stranger.said()["ok"]
        stranger.say(frames()[name])
        answer = stranger.said()
        if answer is not None:
            assert (answer["ok"], answer["error"]["code"] in CODES) == (False, True)
        other.say(b'{"id": 1, "op": "places"}')
        assert other.said()["ok"]
    finally:
        other.close()
        stranger.close()
    assert write(store, note("after"))


def test_a_length_that_lies_takes_no_memory_and_no_other_connection_with_it(store: Store) -> None:
    stranger = Peer(store.directory)
    stranger._socket.sendall(b"\xff\xff\xff\xff{}")
    assert stranger.said() is None
    stranger.close()
    assert write(store, note("after"))


def test_a_request_in_hand_is_answered_although_a_broken_frame_follows_it(tmp_path: Path) -> None:
    async def both() -> list[Any]:
        async with AsyncStore.open(str(tmp_path / "s")) as store:
            peer = Peer(store.directory)
            batch = json.dumps({"id": 1, "op": "write", "batch": a_batch(note("in hand"))}).encode()
            peer.say(batch)
            peer.say(b'{"id": ' + b"[" * 300 + b"]" * 300 + b', "op": "places"}')
            said = await asyncio.to_thread(peer.said)
            peer.close()
            return [said]

    (answer,) = asyncio.run(both())
    assert (answer["id"], answer["ok"]) == (1, True)
