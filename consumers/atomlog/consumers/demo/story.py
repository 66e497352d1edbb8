"""What the demonstration does and says. Each claim is checked before it is printed; a false one ends it."""

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.consumers.demo.importing import accepted_from_the_start, import_file, notes
from atomlog.consumers.processes import SAFE_PATH, interpreter
from atomlog.consumers.rebuild import rebuild
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import WriteResult
from atomlog.kernel.system import SystemFiles
from atomlog.kernel.times import format_time
from atomlog.projections.read.page import Page, Row

SPACE: Final = "garden"
KILL_AFTER: Final = 12  # acknowledged writes of the import

Say = Callable[[str], None]

FIRST: Final[Mapping[str, Any]] = {
    "space": SPACE,
    "idempotency_key": "aoi-1",
    "changes": [
        {"op": "create", "as": "@tea", "key": "shincha", "schema": "collection", "value": {"title": "Shincha / 新茶"}},
        {
            "op": "create",
            "as": "@en",
            "key": "shincha/en",
            "schema": "source",
            "value": {"text": "New tea keeps its scent for three weeks after the tin is opened.", "speaker": "Ben"},
        },
        {
            "op": "create",
            "as": "@ja",
            "key": "shincha/ja",
            "schema": "source",
            "value": {"text": "新茶は封を切ったら三週間のうちに飲みきる。", "speaker": "Aoi"},
        },
        *(
            {
                "op": "create",
                "key": f"shincha has {alias}",
                "schema": "membership",
                "slots": [{"role": "group", "target": "@tea"}, {"role": "member", "target": alias}],
            }
            for alias in ("@en", "@ja")
        ),
    ],
}


async def run_demo(say: Say, keep: str | None = None) -> None:
    """Tell the story in a store of its own: in `keep`, which stays, or in a temporary directory.

    Raises CORRUPT when a claim does not hold, INVALID_INPUT when `keep` is in use.
    """
    if keep is not None:
        with tempfile.TemporaryDirectory(prefix="atomlog-demo-") as scratch:
            await _Story(say=say, directory=keep, scratch=scratch).tell()
        say(f"The store stays in {keep}: try `atomlog status --store {keep}`.")
        return
    with tempfile.TemporaryDirectory(prefix="atomlog-demo-") as scratch:
        await _Story(say=say, directory=f"{scratch}/store", scratch=scratch).tell()


@dataclass(slots=True, kw_only=True)
class _Story:
    say: Say
    directory: str
    scratch: str
    _chapter: int = 0
    _first: WriteResult = field(init=False)
    _receipts: list[tuple[str, bytes]] = field(default_factory=list)

    async def tell(self) -> None:
        await AsyncStore.init(self.directory)
        self.say("Aoi and Ben keep notes about a tea garden, in Japanese and in English.")
        async with await AsyncStore.open(self.directory) as store:
            await self._a_write(store)
            await self._a_refused_conflict(store)
            await self._a_recognised_retry(store)
            await self._a_new_member(store)
            await self._a_pinned_version(store)
            await self._an_earlier_time(store)
        await self._a_kill()
        async with await AsyncStore.open(self.directory) as store:
            await self._a_recall(store)
        await self._a_rebuild()
        async with await AsyncStore.open(self.directory) as store:
            await self._a_replay(store)
        self.say("")
        self.say("Everything said above was checked.")

    async def _a_write(self, store: AsyncStore) -> None:
        self._title("A write: a group and two notes in it, all or nothing")
        self._first = await store.write(FIRST)
        receipt = self._first.receipt
        self._claim(len(self._first.results) == 5, f"5 atoms accepted at position {receipt.position}")
        page = await store.members("key:shincha", space=SPACE, at_least=receipt)
        self._show(page)
        self._claim({row.value["speaker"] for row in page.atoms} == {"Ben", "Aoi"}, "the group has both notes")

    async def _a_refused_conflict(self, store: AsyncStore) -> None:
        self._title("A conflict is refused: both decided on the same version, Ben was faster")
        done = await store.write(self._revision("ben-1", "New tea keeps its scent for two weeks, no longer."))
        try:
            await store.write(self._revision("aoi-2", "New tea keeps its scent for a month."))
        except AtomlogError as error:
            self._claim(error.code == "REVISION_CONFLICT", f"Aoi gets {error.code}: {error.message}")
            head = error.details[0]["head"]
        else:
            raise _false("Aoi's write is refused")
        page = await store.get("key:shincha/en", space=SPACE, at_least=done.receipt)
        self._show(page)
        self._claim(format_id(page.atoms[0].revision) == head, "the refusal names the head; nothing was overwritten")

    async def _a_recognised_retry(self, store: AsyncStore) -> None:
        self._title("A retry is recognised: Ben's client lost the answer and sends the same batch again")
        before = await _end(store)
        again = await store.write(self._revision("ben-1", "New tea keeps its scent for two weeks, no longer."))
        self._claim(again.replayed, f"the first result comes back, position {again.receipt.position}")
        self._claim(await _end(store) == before, "the log did not grow")

    async def _a_new_member(self, store: AsyncStore) -> None:
        self._title("A member is added without touching its group")
        before = (await store.get("key:shincha", space=SPACE)).atoms[0].revision
        batch = _joining("aoi-3", "shincha/tin", "Screw the tin shut under water-warm hands; 缶は温かい手で閉める。")
        done = await store.write(batch)
        after = (await store.get("key:shincha", space=SPACE, at_least=done.receipt)).atoms[0].revision
        page = await store.members("key:shincha", space=SPACE, at_least=done.receipt)
        self._show(page)
        self._claim(len(page.atoms) == 3, "three members now")
        self._claim(before == after, f"the group is still at revision {format_id(after)}")

    async def _a_pinned_version(self, store: AsyncStore) -> None:
        self._title("A pinned reference stays at the version it was made for")
        old = format_id(self._first.results[1].revision)
        slots = [
            {"role": "subject", "target": "key:shincha/ja"},
            {"role": "object", "target": "key:shincha/en", "revision": old},
        ]
        value = {"text": "Aoi agreed with Ben's first version."}
        change = {"op": "create", "key": "agreement", "schema": "statement", "value": value, "slots": slots}
        done = await store.write({"space": SPACE, "idempotency_key": "aoi-4", "changes": [change]})
        statement = (await store.get("key:agreement", space=SPACE, at_least=done.receipt)).atoms[0]
        self._claim(
            [format_id(slot.resolved or b"") for slot in statement.slots if slot.role == "object"] == [old],
            f"the statement points to revision {old}",
        )
        page = await store.get("key:shincha/en", space=SPACE, revision=old)
        self._show(page)
        self._claim("three weeks" in page.atoms[0].value["text"], "which still reads as it did, though Ben revised it")

    async def _an_earlier_time(self, store: AsyncStore) -> None:
        self._title("A read as of an earlier moment")
        at = self._first.receipt.position
        page = await store.get("key:shincha/en", space=SPACE, at=at)
        self._show(page)
        moment = format_time(page.atoms[0].recorded_at_us)
        self._claim("three weeks" in page.atoms[0].value["text"], f"at position {at} the note was Ben's first version")
        timed = await store.members("key:shincha", space=SPACE, as_of=moment)
        self._claim(len(timed.atoms) == 2, f"and as of {moment} the group had two members, not three")

    async def _a_kill(self) -> None:
        self._title("An import is killed in the middle, with kill -9")
        path = f"{self.scratch}/notes.jsonl"
        SystemFiles().write_atomic(path, notes())
        acknowledged = await _kill_import(self.directory, path)
        self._claim(
            acknowledged >= KILL_AFTER,
            f"a process of its own had {acknowledged} writes acknowledged when it was killed",
        )
        async with await AsyncStore.open(self.directory) as store:
            kept, writes = await accepted_from_the_start(store, path, SPACE)
        self._claim(
            acknowledged <= kept < writes, f"opened again, the store has {kept} of {writes}: none of them is lost"
        )
        rest = await import_file(self.directory, path, SPACE)
        self._claim(
            rest.skipped == kept, f"the same import again skips those {kept} and writes the other {rest.written}"
        )
        again = await import_file(self.directory, path, SPACE)
        self._claim(again.written == 0, "and once more: nothing left to write")
        await self._compare_with_uninterrupted(path)

    async def _compare_with_uninterrupted(self, path: str) -> None:
        """Feed a second store the same, without any kill, and compare what the two say."""
        other = f"{self.scratch}/uninterrupted"
        async with await AsyncStore.open(other) as store:
            quiet = _Story(say=lambda line: None, directory=other, scratch=self.scratch)
            await quiet._a_write(store)
            await quiet._a_refused_conflict(store)
            await quiet._a_new_member(store)
            await quiet._a_pinned_version(store)
        await import_file(other, path, SPACE)
        killed, whole = [await _content_digest(directory) for directory in (self.directory, other)]
        self._claim(
            killed == whole, f"a second store, fed the same without a kill, has the same content digest {whole[:16]}…"
        )

    async def _a_recall(self, store: AsyncStore) -> None:
        self._title("A recall in each language")
        await store.wait_until_current()
        for question, key in (
            ("Who brings the baskets for the pickers?", "harvest/hands"),
            ("ほうじ茶の焙煎はいつ止める？", "hojicha/焙煎"),
        ):
            page = await store.recall(question, limit=3)
            self.say(f"   {question}")
            self._show(page)
            wanted = (await store.get(f"key:{key}", space=SPACE)).atoms[0].atom
            self._claim(page.atoms[0].atom == wanted, f"first comes {key}")
            self._receipts.append((format_id(page.receipt.receipt), page.body()))

    async def _a_rebuild(self) -> None:
        self._title("Every index is built anew from the log and compared with the live one")
        reports = await rebuild(self.directory)
        for report in reports:
            self.say(f"   {report.name:<10} {report.rows:>6} rows  {(report.digest_rebuilt or '')[:16]}…")
        self._claim(all(report.equal for report in reports), "all digests agree")
        self._claim(all(report.swapped for report in reports), "and readers have the new ones now")

    async def _a_replay(self, store: AsyncStore) -> None:
        self._title("Receipts of the recalls are replayed, on the rebuilt store, after the notes were changed")
        await store.wait_until_current()
        head = (await store.get("key:harvest/hands", space=SPACE)).atoms[0]
        text = "Ten pickers in the end; the baskets were lent by the temple."
        change = {
            "op": "revise",
            "atom": "key:harvest/hands",
            "expected": format_id(head.revision),
            "value": {"text": text, "speaker": "Ben"},
        }
        await store.write({"space": SPACE, "idempotency_key": "ben-2", "changes": [change]})
        for receipt, body in self._receipts:
            page = await store.replay(receipt)
            digest = hashlib.sha256(page.body()).hexdigest()
            self._claim(page.body() == body, f"{receipt}: the same bytes, SHA-256 {digest[:16]}…")

    def _revision(self, key: str, text: str) -> dict[str, Any]:
        """A revision of Ben's note, decided on its first version."""
        expected = format_id(self._first.results[1].revision)
        value = {"text": text, "speaker": "Ben"}
        change = {"op": "revise", "atom": "key:shincha/en", "expected": expected, "value": value}
        return {"space": SPACE, "idempotency_key": key, "changes": [change]}

    def _title(self, text: str) -> None:
        self._chapter += 1
        self.say("")
        self.say(f"{self._chapter}. {text}")

    def _show(self, page: Page) -> None:
        for row in page.atoms:
            score = "" if row.score is None else f"{row.score:.3f}  "
            self.say(f"   · {score}{_text(row)}")

    def _claim(self, holds: bool, text: str) -> None:
        if not holds:
            raise _false(text)
        self.say(f"   → {text}")


def _false(claim: str) -> AtomlogError:
    return fail("CORRUPT", f"the demonstration claims what does not hold: {claim}")


def _text(row: Row) -> str:
    value: Mapping[str, Any] = row.value
    said = value.get("text") or value.get("title") or ""
    return f"{value['speaker']}: {said}" if "speaker" in value else str(said)


def _joining(key: str, name: str, text: str) -> dict[str, Any]:
    """A note and its membership in the group, which is only referred to."""
    return {
        "space": SPACE,
        "idempotency_key": key,
        "changes": [
            {"op": "create", "as": "@n", "key": name, "schema": "source", "value": {"text": text, "speaker": "Aoi"}},
            {
                "op": "create",
                "key": f"shincha has {name}",
                "schema": "membership",
                "slots": [{"role": "group", "target": "key:shincha"}, {"role": "member", "target": "@n"}],
            },
        ],
    }


async def _content_digest(directory: str) -> str:
    async with await AsyncStore.open(directory, create=False) as store:
        await store.wait_until_current()
        return await store.content_digest()


async def _end(store: AsyncStore) -> int:
    status = await store.status()
    return int(status.partitions[0]["end"])


async def _kill_import(directory: str, path: str) -> int:
    """Start an import in another process, kill it after some writes; the writes that it saw acknowledged."""
    process = await asyncio.create_subprocess_exec(
        interpreter(),
        SAFE_PATH,
        "-m",
        "atomlog.consumers.demo.child",
        directory,
        path,
        SPACE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    count = 0
    try:
        while count < KILL_AFTER and (line := await process.stdout.readline()):
            count = int(line)
    finally:
        if process.returncode is None:
            process.kill()
        rest = await process.stdout.read()
        await process.wait()
    return int(rest.split()[-1]) if rest.split() else count
