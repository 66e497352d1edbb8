"""The golden files as tests read them."""

import json
from pathlib import Path
from typing import Any

from atomlog.schemas import codec

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
RELEASED: dict[str, dict[str, str]] = json.loads((HERE / "released.json").read_text("utf-8"))


def data(name: str) -> dict[str, Any]:
    """Case → datum, bytes as hexadecimal text."""
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return found


def encodings(name: str) -> dict[str, bytes]:
    """Case → bytes."""
    lines = (GOLDEN / f"{name}.hex").read_text("ascii").splitlines()
    return dict(zip(data(name), map(bytes.fromhex, lines), strict=True))


def shown(value: Any) -> Any:
    """A datum with its bytes as hexadecimal text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


def kinds_of(name: str) -> list[str]:
    """The record kinds that may carry this schema."""
    return [kind for kind, names in codec.KIND_SCHEMAS.items() if name in names]


CASES = [(name, case) for name in RELEASED for case in data(name)]
