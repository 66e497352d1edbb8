"""What is asked of the reader: drawn questions in a plain form, and the selectors they become."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from atomlog.projections.read.selectors import ByIds, Groups, History, Members, Relations, Selector
from tests.oracle.brute_model import Model
from tests.statemachine.requests import ROLES


def question(model: Model, data: st.DataObject) -> dict[str, Any]:
    """A read of what is there, in the plain form that `checkers.expected_rows` takes."""
    groups = [atom for atom, versions in model.versions.items() if versions[0].schema == "collection"]
    atoms = list(model.versions)
    kind = data.draw(st.sampled_from(("members", "members", "relations", "groups", "history", "ids")))
    if not atoms or (kind == "members" and not groups):
        return {"type": "ids", "ids": [bytes(15) + b"\x01"]}

    def some(pool: Sequence[bytes], most: int) -> list[bytes]:
        picked = data.draw(st.lists(st.integers(0, len(pool) - 1), max_size=most, unique=True))
        return [pool[n] for n in picked]

    def one(pool: Sequence[bytes]) -> bytes:
        return pool[data.draw(st.integers(0, len(pool) - 1))]

    if kind == "members":
        sets: dict[str, Any] = {name: some(groups, 1) for name in ("and", "or", "not")}
        return {"type": kind, "group": one(groups), "include_retired": data.draw(st.booleans()), **sets}
    if kind == "relations":
        role = data.draw(st.sampled_from((None, *ROLES, "group", "member")))
        return {"type": kind, "target": one(atoms), "role": role}
    if kind == "ids":
        return {"type": kind, "ids": some(atoms, 5) or [one(atoms)]}
    return {"type": kind, "member" if kind == "groups" else "atom": one(atoms)}


def selector(asked: Mapping[str, Any]) -> Selector:
    match asked["type"]:
        case "members":
            sets = {f"{name}_": tuple(asked[name]) for name in ("and", "or", "not")}
            return Members(group=asked["group"], include_retired=asked["include_retired"], **sets)
        case "relations":
            return Relations(target=asked["target"], role=asked["role"])
        case "groups":
            return Groups(member=asked["member"])
        case "history":
            return History(atom=asked["atom"])
        case _:
            return ByIds(ids=tuple(asked["ids"]))
