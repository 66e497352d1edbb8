"""A mutating fuzzer: inputs that reach new lines of the program are kept and changed further.

A decoder is given bytes. It must give a result or refuse with its own error, whatever they are; within a number of
lines and of bytes that grow with the input and no faster. What else happens is a `Finding`.
"""

import hashlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError
from atomlog.schemas.varint import WireError
from tests.fuzz.measure import Lines, TooMuchWork, peak_bytes
from tests.fuzz.mutations import mutated, mutated_json

CORPUS: Final = Path(__file__).parent / "corpus"
POOL_MAX: Final = 2_000
MEMORY_EVERY: Final = 16  # measuring it doubles what a run costs
SHRINK_TRIES_MAX: Final = 400
MESSAGE_CHARACTERS_MAX: Final = 4_000


class Broken(AssertionError):
    """A decoder gave a result that cannot be right; raised by a target's own checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`decode` raises one of `refusals`, or an AtomlogError with one of `codes`, for what it does not take.

    `mended` makes checksums right again, so that the fuzzer gets past them; it is used on half of the inputs.
    `json`: inputs are JSON, and mostly stay so. Memory and lines may grow with the input by `bytes_per_byte` and
    `lines_per_byte`.
    """

    name: str
    decode: Callable[[bytes], Any]
    seeds: Callable[[], Sequence[bytes]]
    refusals: tuple[type[Exception], ...] = (WireError,)
    codes: frozenset[str] = frozenset()
    words: Sequence[bytes] = ()
    mended: Callable[[bytes], bytes] | None = None
    json: bool = False
    executions: int = 8_000
    lines_per_byte: int = 60
    bytes_per_byte: int = 200
    lines_base: int = 3_000
    bytes_base: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What went wrong on which input, in words that are the same for the same fault."""

    what: str
    data: bytes
    trace: str

    @property
    def name(self) -> str:
        """What its file in the corpus is called."""
        return f"found-{hashlib.sha256(self.data).hexdigest()[:12]}"


@dataclass(slots=True)
class Report:
    """What became of a run. `kept` are the inputs that reached lines the corpus had not."""

    executions: int = 0
    lines: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)


def corpus(target: Target) -> list[tuple[str, bytes]]:
    """The kept inputs of a target by file name, then those it makes itself."""
    folder = CORPUS / target.name
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    seeds = [(f"seed {n}", seed) for n, seed in enumerate(target.seeds())]
    return [(file.name, file.read_bytes()) for file in files] + seeds


class Fuzzer:
    """One run over one target. The same seed and number of executions give the same inputs."""

    def __init__(self, target: Target, seed: int, note: Callable[[bytes], None] = lambda data: None) -> None:
        """`note` is told each input before it is tried: what a crash leaves behind."""
        self._target = target
        self._draw = Random(f"{seed} {target.name}")
        self._note = note
        self._lines = Lines()
        self.report = Report()
        self._known: set[str] = set()

    def run(self, goes_on: Callable[[int], bool]) -> Report:
        """The whole corpus, then changed inputs as long as `goes_on(executions so far)`."""
        pool = [data for _, data in corpus(self._target)]
        assert pool, f"{self._target.name} has nothing to begin with"
        for data in pool:
            self._try(data, measured=True)
        count = 0
        while goes_on(count):
            count += 1
            data = self._next(pool)
            if self._try(data, measured=count % MEMORY_EVERY == 0):
                self.report.kept.append(data)
                pool.append(data)
                if len(pool) > POOL_MAX:
                    del pool[self._draw.randrange(len(pool))]
        self.report.lines = len(self._lines.seen)
        return self.report

    def _next(self, pool: Sequence[bytes]) -> bytes:
        chosen = min(self._draw.choices(pool, k=3), key=len)  # short ones are tried faster
        data = mutated_json(self._draw, chosen, pool) if self._target.json and self._draw.random() < 0.7 else None
        if data is None:
            data = mutated(self._draw, chosen, pool, self._target.words)
        return self._target.mended(data) if self._target.mended is not None and self._draw.random() < 0.5 else data

    def _try(self, data: bytes, *, measured: bool) -> bool:
        """Whether the input reached a line that no other did."""
        self._note(data)
        self.report.executions += 1
        found, new = self._judged(data, measured)
        if found is None:
            return new
        if found.what not in self._known:
            self._known.add(found.what)
            self.report.findings.append(self._shrunk(found))
        return False

    def _judged(self, data: bytes, measured: bool) -> tuple[Finding | None, bool]:
        """What is wrong with the way this input is taken, if anything; and whether it led to a new line."""
        target = self._target
        outcome = _Outcome(target, data)
        most = target.lines_base + target.lines_per_byte * len(data)
        try:
            _, new = self._lines.run(outcome.make, most)
        except TooMuchWork as error:
            return Finding(what=f"more than {most} lines for {len(data)} bytes", data=data, trace=str(error)), False
        self.report.refused += outcome.refused
        if outcome.wrong is None and measured:
            again = _Outcome(target, data)
            peak = peak_bytes(again.make)
            allowed = target.bytes_base + target.bytes_per_byte * len(data)
            if peak > allowed:
                return Finding(what=f"more than {allowed} bytes of memory", data=data, trace=f"{peak} bytes"), False
        if outcome.wrong is None:
            return None, new
        return Finding(what=outcome.wrong, data=data, trace=outcome.trace), False

    def _shrunk(self, found: Finding) -> Finding:
        """The same fault on fewer bytes, as far as leaving out parts of it goes."""
        smallest = found
        size = len(found.data) // 2
        tries = 0
        while size > 0 and tries < SHRINK_TRIES_MAX:
            at = 0
            while at < len(smallest.data) and tries < SHRINK_TRIES_MAX:
                tries += 1
                shorter = smallest.data[:at] + smallest.data[at + size :]
                self._note(shorter)
                again, _ = self._judged(shorter, measured=True)
                if again is not None and again.what == found.what:
                    smallest = again
                else:
                    at += size
            size //= 2
        return smallest


class _Outcome:
    """One call of a decoder and what came of it."""

    def __init__(self, target: Target, data: bytes) -> None:
        self._target = target
        self._data = data
        self.refused = False
        self.wrong: str | None = None
        self.trace = ""

    def make(self) -> None:
        try:
            self._target.decode(self._data)
        except Broken as error:
            self._is_wrong(f"broken result: {error}", error)
        except AtomlogError as error:
            self.refused = True
            if error.code not in self._target.codes:
                self._is_wrong(f"code {error.code}", error)
            elif (flaw := _flaw_of(error)) is not None:
                self._is_wrong(flaw, error)
        except self._target.refusals:
            self.refused = True
        except Exception as error:
            self._is_wrong(f"{type(error).__name__} at {_place_of(error)}", error)

    def _is_wrong(self, what: str, error: Exception) -> None:
        self.wrong = what
        self.trace = "".join(traceback.format_exception(error, limit=-12))


def _flaw_of(error: AtomlogError) -> str | None:
    """Why a refusal is of no use to the one who gets it; None when it is fine."""
    texts = [error.message, *(str(detail.get("message", "")) for detail in error.details)]
    texts += [str(detail.get("path", "")) for detail in error.details]
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"the message of {error.code} cannot be written"
    if len(error.message) > MESSAGE_CHARACTERS_MAX:
        return f"the message of {error.code} is too long to be read"
    return None


def _place_of(error: BaseException) -> str:
    """The deepest line of the program's own that an exception passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/atomlog/" in frame.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the target itself"


def until(executions: int) -> Callable[[int], bool]:
    return lambda count: count < executions


def agree(condition: bool, what: str) -> None:
    """Raise Broken unless a result is as it must be."""
    if not condition:
        raise Broken(what)
