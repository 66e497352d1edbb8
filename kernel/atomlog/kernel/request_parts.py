"""The parts of a change and of a precondition, read strictly; every failing part goes to the findings.

Values here are plain JSON (`request_copy`). A part that failed is replaced by a placeholder: as long as there are
findings, nothing that was parsed is used.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from atomlog.kernel.bounds import INTEGER_MAX, ORDER_KEY_BYTES_MAX, PROVENANCE_TEXT_BYTES_MAX
from atomlog.kernel.findings import REFUSED, ROOT, Findings, member_path, suggestion
from atomlog.kernel.ids import invalid, parse_id, parse_name, shown
from atomlog.kernel.model import Alias, AtomRef, OriginRequest, ProvenanceRequest, RevisionRef, SlotRequest
from atomlog.kernel.profiles import KINDS
from atomlog.kernel.references import parse_atom_ref, parse_revision_ref
from atomlog.kernel.text import refuse_blob
from atomlog.kernel.times import format_time, parse_time
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.schemas.revision import ZERO16, ValidTime

T = TypeVar("T")

_SLOT_FIELDS: Final = ("role", "target", "mode", "revision", "required", "order_key")
_ORIGIN_FIELDS: Final = ("source", "revision", "start", "end")
_PROVENANCE_FIELDS: Final = ("kind", "activity", "receipts", "model", "prompt_digest")
_SLOT_HINTS: Final[Mapping[str, str]] = {
    "at": 'unknown field; a pinned slot has "revision"',
    "include": 'unknown field; write "mode": "include"',
    "atom": 'unknown field; write "target"',
}
# What stands for a reference that could not be read.
_NO_ATOM: Final[AtomRef] = ZERO16
_NO_REVISION: Final[RevisionRef] = ZERO16
_NO_PROVENANCE: Final = ProvenanceRequest()
_MODES: Final = ("refer", "include")

Vectors = tuple[tuple[str, tuple[float, ...]], ...]


class PartReader:
    """Reads the parts of one batch; `space` and `aliases` are what names mean inside it."""

    def __init__(self, findings: Findings, space: str, aliases: Collection[str]) -> None:
        self.findings = findings
        self.space = space
        self._aliases = aliases

    def take(self, parse: Callable[[Any, str], T], raw: Any, path: str, instead: T) -> T:
        return self.findings.take(parse, raw, path, instead)

    def need(self, parse: Callable[[Any, str], T], fields: Mapping[str, Any], name: str, path: str, instead: T) -> T:
        """A field that must be there and not null."""
        raw = fields.get(name)
        if raw is None:
            self.findings.add(member_path(path, name), "is missing")
            return instead
        return self.take(parse, raw, name if path == ROOT else f"{path}.{name}", instead)

    def option(self, parse: Callable[[Any, str], T], fields: Mapping[str, Any], name: str, path: str, instead: T) -> T:
        """A field that may be absent or null, which both mean `instead`."""
        raw = fields.get(name)
        return instead if raw is None else self.take(parse, raw, member_path(path, name), instead)

    def object(
        self, raw: Any, path: str, fields: Collection[str], hints: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """An object with no other fields than these; the empty one when it is none."""
        if not isinstance(raw, dict):
            if raw is not REFUSED:
                self.findings.add(path, f"{shown(raw)} is no object with {', '.join(fields)}")
            return {}
        self.findings.refuse_unknown(raw, path, fields, hints or {})
        return raw

    def list(self, raw: Any, path: str) -> list[Any]:
        """A list; absent and null are the empty one."""
        if isinstance(raw, list):
            return raw
        if raw is not None and raw is not REFUSED:
            self.findings.add(path, f"{shown(raw)} is no list")
        return []

    def choice(self, raw: Any, name: str, path: str, known: Mapping[str, Any]) -> str | None:
        """The field of an object that says what it is; None when it cannot be told."""
        if not isinstance(raw, dict):
            if raw is not REFUSED:
                self.findings.add(path, f'{shown(raw)} is no object with "{name}"')
            return None
        word = raw.get(name)
        if isinstance(word, str) and word in known:
            return word
        if word is not REFUSED:
            message = "is missing" if word is None else f"{shown(word)} is unknown"
            self.findings.add(member_path(path, name), f"{message}; {suggestion(word, known)}")
        return None

    def value(self, raw: Any, path: str) -> Any:
        """Any JSON; the one word that is the store's own is refused."""
        if type(raw) is dict:
            self.take(refuse_blob, raw, path, None)
        return raw

    def atom(self, fields: Mapping[str, Any], name: str, path: str) -> AtomRef:
        def parse(value: Any, where: str) -> AtomRef:
            return parse_atom_ref(value, where, space=self.space, aliases=self._aliases)

        return self.need(parse, fields, name, path, _NO_ATOM)

    def slots(self, raw: Any, path: str) -> tuple[SlotRequest, ...]:
        if raw is None:
            return ()
        return tuple(self._slot(slot, f"{path}[{n}]") for n, slot in enumerate(self.list(raw, path)))

    def _slot(self, raw: Any, path: str) -> SlotRequest:
        slot = self.object(raw, path, _SLOT_FIELDS, _SLOT_HINTS)
        if not isinstance(raw, dict):
            return SlotRequest(role="", target=ZERO16)
        target = self.atom(slot, "target", path)
        include = self.option(_mode, slot, "mode", path, "refer") == "include"
        return SlotRequest(
            role=self.need(parse_name, slot, "role", path, ""),
            target=target,
            at=self._pin(slot, target, path, needed=include),
            include=include,
            required=self.option(_boolean, slot, "required", path, False),
            order_key=self.option(_order_key, slot, "order_key", path, b""),
        )

    def _pin(self, fields: Mapping[str, Any], target: AtomRef, path: str, *, needed: bool) -> RevisionRef | None:
        """The revision that a slot or an origin fixes. An alias that must be fixed is fixed at its new revision."""

        def parse(value: Any, where: str) -> RevisionRef:
            return parse_revision_ref(value, where, aliases=self._aliases)

        if fields.get("revision") is not None:
            return self.need(parse, fields, "revision", path, _NO_REVISION)
        if needed and isinstance(target, Alias):
            return target
        if needed and target != ZERO16:
            message = 'a fixed version is needed here: write "revision", a UUID or the alias of a change of this batch'
            self.findings.add(f"{path}.revision", message)
        return None

    def valid_time(self, raw: Any, path: str) -> ValidTime | None:
        """Half-open; an absent or null end is open. Both open says nothing, and is refused."""
        if raw is None or raw is REFUSED:
            return None
        ends = self.object(raw, path, ("from", "to"))
        if not isinstance(raw, dict):
            return None
        before = self.findings.count
        start = self.option(_time, ends, "from", path, None)
        stop = self.option(_time, ends, "to", path, None)
        if self.findings.count > before or REFUSED in ends.values():
            return None
        if start is None and stop is None:
            self.findings.add(path, 'at least one of "from" and "to" is a time; without any write "valid_time": null')
            return None
        if start is not None and stop is not None and start >= stop:
            self.findings.add(path, f'"from" {format_time(start)} is not before "to" {format_time(stop)}')
        return ValidTime(from_us=start, to_us=stop)

    def origins(self, raw: Any, path: str) -> tuple[OriginRequest, ...]:
        if raw is None:
            return ()
        return tuple(self._origin(origin, f"{path}[{n}]") for n, origin in enumerate(self.list(raw, path)))

    def _origin(self, raw: Any, path: str) -> OriginRequest:
        origin = self.object(raw, path, _ORIGIN_FIELDS)
        if not isinstance(raw, dict):
            return OriginRequest(source=ZERO16, revision=ZERO16, start=0, end=1)
        source = self.atom(origin, "source", path)
        revision = self._pin(origin, source, path, needed=True) or ZERO16
        before = self.findings.count
        start = self.need(_byte_offset, origin, "start", path, 0)
        end = self.need(_byte_offset, origin, "end", path, 1)
        if self.findings.count == before and start >= end:
            self.findings.add(path, f"bytes {start} to {end} are no range; it is half-open and not empty")
        return OriginRequest(source=source, revision=revision, start=start, end=end)

    def provenance(self, raw: Any, path: str) -> ProvenanceRequest:
        if raw is None:
            return _NO_PROVENANCE
        fields = self.object(raw, path, _PROVENANCE_FIELDS)
        receipts = self.list(fields.get("receipts"), f"{path}.receipts")
        return ProvenanceRequest(
            kind=self.option(_kind, fields, "kind", path, None),
            activity=self.option(_short_text, fields, "activity", path, ""),
            receipts=tuple(self.take(parse_id, id, f"{path}.receipts[{n}]", ZERO16) for n, id in enumerate(receipts)),
            model=self.option(_short_text, fields, "model", path, ""),
            prompt_digest=self.option(_short_text, fields, "prompt_digest", path, ""),
        )

    def vectors(self, raw: Any, path: str) -> Vectors:
        """`{"<space id>": [numbers]}`; which spaces the store has is checked later."""
        if raw is None or raw is REFUSED:
            return ()
        if not isinstance(raw, dict):
            self.findings.add(path, f'{shown(raw)} is no object like {{"hashing/1/512/cosine": [0.1, …]}}')
            return ()
        found: list[tuple[str, tuple[float, ...]]] = []
        for name, numbers in raw.items():
            where = member_path(path, name)
            self.take(parse_vector_space, name, where, None)
            found.append((name, self._numbers(numbers, where)))
        return tuple(found)

    def _numbers(self, raw: Any, path: str) -> tuple[float, ...]:
        numbers = self.list(raw, path)
        if raw is None or raw == []:
            self.findings.add(path, "a vector has at least one number")
        for n, number in enumerate(numbers):
            if type(number) is not float and type(number) is not int and number is not REFUSED:
                self.findings.add(f"{path}[{n}]", f"{shown(number)} is no number")
        return tuple(float(number) for number in numbers if isinstance(number, int | float))


def parse_position(raw: Any, path: str) -> int:
    """A position of the log; −1 stands before the first record."""
    position = _integer(raw)
    if position is None or not -1 <= position <= INTEGER_MAX:
        raise invalid(path, f"{shown(raw)} is no position; write an integer from -1 on")
    return position


def _integer(raw: Any) -> int | None:
    """An integer; 1.0 is the same JSON number as 1."""
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None


def _byte_offset(raw: Any, path: str) -> int:
    offset = _integer(raw)
    if offset is None or offset < 0:
        raise invalid(path, f"{shown(raw)} is no offset in bytes; write an integer from 0 on")
    return offset


def _time(raw: Any, path: str) -> int | None:
    return parse_time(raw, path)


def _boolean(raw: Any, path: str) -> bool:
    if not isinstance(raw, bool):
        raise invalid(path, f"{shown(raw)} is neither true nor false")
    return raw


def _mode(raw: Any, path: str) -> str:
    if raw not in _MODES:
        raise invalid(path, f"{shown(raw)} is no mode; {suggestion(raw, _MODES)}")
    return str(raw)


def _kind(raw: Any, path: str) -> str | None:
    if raw not in KINDS:
        raise invalid(path, f"{shown(raw)} is no kind of provenance; {suggestion(raw, KINDS)}")
    return str(raw)


def _order_key(raw: Any, path: str) -> bytes:
    if not isinstance(raw, str):
        raise invalid(
            path, f"{shown(raw)} is no text; an order key is compared byte by byte, so pad numbers with zeros"
        )
    key = raw.encode()
    if len(key) > ORDER_KEY_BYTES_MAX:
        raise invalid(path, f"an order key has at most {ORDER_KEY_BYTES_MAX} bytes, this one {len(key)}")
    return key


def _short_text(raw: Any, path: str) -> str:
    if not isinstance(raw, str):
        raise invalid(path, f"{shown(raw)} is no text")
    if len(raw.encode()) > PROVENANCE_TEXT_BYTES_MAX:
        raise invalid(path, f"at most {PROVENANCE_TEXT_BYTES_MAX} bytes, found {len(raw.encode())}")
    return raw
