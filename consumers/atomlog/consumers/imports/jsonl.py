"""`import jsonl`: a file of changes, one a line, replayed as history. Docs: docs/cli.md."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from atomlog.consumers.imports.heads import ImportStore, Keys
from atomlog.consumers.imports.lines import BadLine, parse_line
from atomlog.consumers.imports.plan import Refused, Write, plan
from atomlog.consumers.imports.raw import RawLine, raw_lines
from atomlog.consumers.imports.runner import Runner
from atomlog.consumers.imports.runs import Item, Mark
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.imports.survey import survey
from atomlog.kernel.bounds import REQUEST_BYTES_MAX, Bounds
from atomlog.kernel.ids import invalid
from atomlog.kernel.ports import Clock, File

ACTIVITY: Final = "import jsonl"
LINE_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2  # a line and what it becomes must fit one request


@dataclass(slots=True, kw_only=True)
class JsonlImport:
    """One import of one file, which must not change meanwhile and is read twice: what was imported before, then the
    rest.

    `progress` is told the phase ("looking" or "writing"), bytes done and bytes in all; `written` is called after each
    acknowledged write.
    """

    store: ImportStore
    keys: Keys
    file: File
    clock: Clock
    split: bool = False
    keep_going: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    say: Callable[[str], None] = lambda message: None
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None
    written: Callable[[], None] = lambda: None

    async def run(self, summary: Summary) -> None:
        """Raises the error of the first refused batch, unless `keep_going`. The summary counts while it runs."""
        await self.store.settle()  # a line must not be compared with what an index behind the log says
        found = await survey(self.store, self.plan, self._passing("looking"))
        runner = Runner(
            store=self.store,
            keys=self.keys,
            activity=ACTIVITY,
            split=self.split,
            keep_going=self.keep_going,
            clock=self.clock,
            summary=summary,
            passed=self._passing("writing"),
            say=self.say,
            written=self.written,
            survey=found,
        )
        await runner.run(_each(self.plan()))

    def plan(self) -> Iterator[Write | Refused]:
        """What the file asks for, from its beginning."""
        return plan(self._read, split=self.split, bounds=self.bounds)

    def _read(self, mark: Mark) -> Iterator[tuple[Item, Mark]]:
        lines = raw_lines(self.file, offset=mark.offset, number=mark.number, line_bytes_max=LINE_BYTES_MAX)
        for raw in lines:
            yield _item(raw, self.bounds), Mark(offset=raw.end, number=raw.number + 1)

    def _passing(self, phase: str) -> Callable[[int], None]:
        total = self.file.size()
        done = 0

        def passed(size_bytes: int) -> None:
            nonlocal done
            done = min(total, done + size_bytes)
            self.progress(phase, done, total)

        return passed


def _item(raw: RawLine, bounds: Bounds) -> Item:
    if raw.data is None:
        error = invalid(f"line {raw.number}", f"{raw.size_bytes} bytes are more than {LINE_BYTES_MAX}")
        return BadLine(number=raw.number, error=error, size_bytes=raw.size_bytes)
    return parse_line(raw.data, raw.number, size_bytes=raw.size_bytes, bounds=bounds)


async def _each(items: Iterator[Write | Refused]) -> AsyncIterator[Write | Refused]:
    for item in items:
        yield item
