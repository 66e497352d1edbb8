"""Changes in few words, for batches."""

from collections.abc import Mapping
from typing import Any

Change = dict[str, Any]
Made = Mapping[str, Any]


def source(text: str, **more: Any) -> Change:
    return {"op": "create", "schema": "source", "value": {"text": text}, **more}


def collection(title: str, **more: Any) -> Change:
    return {"op": "create", "schema": "collection", "value": {"title": title}, **more}


def membership(group: str, member: str, *, order_key: str = "", **more: Any) -> Change:
    slots = [
        {"role": "group", "target": group, "mode": "refer"},
        {"role": "member", "target": member, "mode": "refer", **({"order_key": order_key} if order_key else {})},
    ]
    return {"op": "create", "schema": "membership", "slots": slots, **more}


def revise(made: Made, value: Any, **more: Any) -> Change:
    """Of the head that a result, or a row, names."""
    return {"op": "revise", "atom": made["atom"], "expected": made["revision"], "value": value, **more}


def retire(made: Made) -> Change:
    return {"op": "retire", "atom": made["atom"], "expected": made["revision"]}


def members(group: str, **more: Any) -> dict[str, Any]:
    """The selector."""
    return {"type": "members", "group": group, **more}


def ids(*atoms: str) -> dict[str, Any]:
    return {"type": "ids", "ids": list(atoms)}


def history(atom: str) -> dict[str, Any]:
    return {"type": "history", "atom": atom}
