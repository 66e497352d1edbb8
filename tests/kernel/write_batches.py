"""Batches as callers write them, and what is said about one that is refused."""

import json
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import (
    Create,
    SlotRequest,
)
from atomlog.kernel.requests import parse_write

A, B, C, R = (bytes([n]) * 16 for n in (0xA1, 0xB2, 0xC3, 0x77))
SPACE = "notes"
SOURCE = {"op": "create", "schema": "source", "value": {"text": "Green tea, 80 °C"}}
T0 = 1_772_323_200_000_000


def ref(raw: bytes) -> str:
    return format_id(raw)


def create(**more: Any) -> dict[str, Any]:
    return {**SOURCE, **more}


def revise(**more: Any) -> dict[str, Any]:
    return {"op": "revise", "atom": ref(A), "expected": ref(B), "value": {"text": "x"}, **more}


def retire(**more: Any) -> dict[str, Any]:
    return {"op": "retire", "atom": ref(A), "expected": ref(B), **more}


def batch(*changes: Any, **more: Any) -> dict[str, Any]:
    return {"space": SPACE, "idempotency_key": "k-1", "changes": list(changes), **more}


def error_of(raw: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as raised:
        parse_write(raw)
    json.dumps(raised.value.to_dict()).encode()  # it can be shown, whatever it is about
    return raised.value


def failing(raw: Any) -> list[str]:
    """The paths of an INVALID_INPUT, in order."""
    error = error_of(raw)
    assert error.code == "INVALID_INPUT"
    assert all(found["code"] == "INVALID_INPUT" and found["message"] for found in error.details)
    return [found["path"] for found in error.details]


def message(raw: Any) -> str:
    """The message about the only failing part."""
    error = error_of(raw)
    assert len(error.details) == 1, error.details
    assert error.message == f"{error.details[0]['path']}: {error.details[0]['message']}"
    return str(error.details[0]["message"])


def slots(*items: Any) -> dict[str, Any]:
    return batch(create(**{"as": "@me"}, slots=list(items)))


def only_slot(**slot: Any) -> SlotRequest:
    change = parse_write(batch(create(slots=[{"role": "r", "target": ref(A), **slot}]))).changes[0]
    assert isinstance(change, Create)
    return change.slots[0]


class Numbers:
    """As an array of another library gives its numbers."""

    def __init__(self, numbers: Any, size: int | None = None) -> None:
        self._numbers = numbers
        self.size = len(numbers) if size is None else size

    def tolist(self) -> Any:
        return self._numbers
