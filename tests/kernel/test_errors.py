"""An error that came from another process, or from a file, is one of ours whatever it holds."""

from typing import Any

import pytest

from atomlog.kernel.errors import CODES, fail, from_dict


@pytest.mark.parametrize("code", CODES)
def test_every_error_comes_back_as_it_was(code: str) -> None:
    error = fail(code, "why", details=[{"path": "x", "code": code, "message": "part"}], retry_after_ms=5)
    again = from_dict(error.to_dict())
    assert (type(again), again.to_dict()) == (type(error), error.to_dict())


@pytest.mark.parametrize(
    "found",
    [{}, {"code": "CORRUPTED"}, {"code": []}, {"code": None}, {"code": 1, "message": "m"}],
)
def test_what_is_no_error_is_damage(found: dict[str, Any]) -> None:
    assert from_dict(found).code == "CORRUPT"


def test_parts_that_are_not_what_they_must_be_are_dropped() -> None:
    error = from_dict({"code": "NOT_OWNER", "message": 7, "details": 3, "retry_after_ms": "soon"})
    assert (error.code, error.message, error.details, error.retry_after_ms) == ("NOT_OWNER", "7", (), None)
