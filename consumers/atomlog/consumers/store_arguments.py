"""What callers of a store pass, in the forms that they may pass it: checked, and made into one form."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from atomlog.kernel.ids import invalid, parse_id, shown
from atomlog.kernel.model import Positions, WriteReceipt
from atomlog.kernel.settings import Settings
from atomlog.projections.read.receipts import ReadReceipt

Id = str | bytes | Mapping[str, Any]
"""An atom: UUID text, `key:TEXT`, `RECEIPT#a1`, `{"key", "space", "policy"}`, or 16 raw bytes."""

TIMEOUT_S_MAX: Final = 86_400.0


class NodeOptions(TypedDict, total=False):
    """What may be said of a node that is made, beside the brokers: see `atomlog.consumers.cluster.creation`."""

    kafka_config: str
    prefix: str
    replication: int
    blobs: str
    node_pem: str
    allow_weak: Sequence[str]


def id_list(ids: Id | Sequence[Id]) -> list[Any]:
    """One id or several, as a list: a single text is one id, not its characters."""
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Sequence):
        return [ids]
    return list(ids)


def text_list(given: object, name: str) -> list[str]:
    """A list of texts. INVALID_INPUT for anything else, one text alone included."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
        raise invalid(name, f"{shown(given)} is no list of texts")
    return list(given)


def name_list(given: object, name: str, known: Sequence[str]) -> list[str]:
    """Some of the known names, each once. INVALID_INPUT for others."""
    for index, one in enumerate(names := text_list(given, name)):
        if one not in known:
            raise invalid(f"{name}[{index}]", f"there is no projection {shown(one)}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def settings_of(given: object) -> Settings:
    """Settings, or the defaults. INVALID_INPUT for anything else."""
    if given is None:
        return Settings()
    if not isinstance(given, Settings):
        raise invalid("settings", f"{shown(given)} is no Settings; write Settings(page_limit=50)")
    return given


def timeout_ms(timeout_s: Any) -> int | None:
    """Seconds as milliseconds. INVALID_INPUT for what is no length of time."""
    if timeout_s is None:
        return None
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not number or not 0 <= timeout_s <= TIMEOUT_S_MAX:  # NaN is neither
        raise invalid("timeout_s", f"{shown(timeout_s)} is no number of seconds from 0 to {TIMEOUT_S_MAX:.0f}")
    return int(timeout_s * 1_000)


def positions_of(receipt: Any) -> Positions:
    """The place to wait for: a write receipt as an object or as JSON."""
    if isinstance(receipt, WriteReceipt):
        return {receipt.partition: receipt.position}
    found = receipt if isinstance(receipt, Mapping) else {}
    partition, position = found.get("partition"), found.get("position")
    if type(partition) is not int or type(position) is not int:
        raise invalid("at_least", "must be a write receipt with partition and position")
    return {partition: position}


def everywhere(at: Any, partitions: int) -> Positions | None:
    """A position of every partition; a single number stands for the only one. INVALID_INPUT for anything else."""
    if at is None:
        return None
    if type(at) is int:
        if partitions > 1:
            raise invalid("at", f"the store has {partitions} partitions; write 0:N,1:N,…, or a mapping in Python")
        return {0: at}
    if not isinstance(at, Mapping) or not all(type(number) is int for pair in at.items() for number in pair):
        raise invalid("at", f"{shown(at)} is neither a position nor a mapping of partitions to positions")
    return dict(at)


def receipt_id(receipt: str | ReadReceipt) -> bytes:
    """The id of a receipt that is given as itself or by its id."""
    return receipt.receipt if isinstance(receipt, ReadReceipt) else parse_id(receipt, "receipt")
