"""Frozen dataclasses with a quick `__init__`: all that they were before."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from atomlog.schemas.quick import quick
from atomlog.schemas.revision import Clear


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    one: int
    two: str = "two"
    many: Any = field(default_factory=dict)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    one: int
    two: str = "two"
    many: Any = field(default_factory=dict)


def shown(value: Plain | Quick) -> str:
    return repr(value).replace("Quick", "Plain")


def test_it_is_made_shown_compared_and_replaced_as_before() -> None:
    ways: list[dict[str, Any]] = [{"one": 1}, {"one": 1, "two": "x"}, {"one": 1, "many": {"a": 1}}]
    for given in ways:
        made, plain = Quick(**given), Plain(**given)
        assert shown(made) == shown(plain)
        assert made == Quick(**given) != Quick(one=2)
        assert type(made) is Quick
        assert shown(replace(made, one=3)) == shown(replace(plain, one=3))
        assert shown(copy.copy(made)) == shown(plain)
    assert hash(Quick(one=1, many=())) == hash(Plain(one=1, many=()))
    assert Quick(one=1).many is not Quick(one=1).many
    assert list(inspect.signature(Quick).parameters) == [one.name for one in fields(Quick)]


def test_it_stays_frozen_and_slotted() -> None:
    made = Quick(one=1)
    with pytest.raises(FrozenInstanceError):
        made.one = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.one
    assert not hasattr(made, "__dict__")
    assert made.one == 1


def test_wrong_arguments_are_refused_and_leave_nothing_half_made() -> None:
    wrongs: list[dict[str, Any]] = [{}, {"one": 1, "three": 3}]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            Quick(**wrong)
    with pytest.raises(TypeError):
        Quick(1)  # type: ignore[call-arg]


def test_only_what_it_is_made_for_is_taken() -> None:
    @dataclass(slots=True, kw_only=True)
    class Thawed:
        one: int

    @dataclass(frozen=True, slots=True)
    class Positional:
        one: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        one: int

        def __post_init__(self) -> None: ...

    for wrong in (Thawed, Positional, Checked, int):
        with pytest.raises(TypeError):
            quick(wrong)


def test_a_real_one_goes_through_pickle() -> None:
    ids = {"atom_id": b"a", "revision_id": b"r", "previous": None, "key_id": None}
    clear = Clear(**ids, recorded_at_us=1, retired=False, schema="s", policy="p")  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(clear)) == clear
