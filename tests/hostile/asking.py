"""Writing to and asking a store as its users do."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from atomlog.client import AtomlogError, Store
from atomlog.projections.read.page import Page

SPACE: Final = "notes"
TRIES_MAX: Final = 3_000  # 10 ms each; reaching it means failure
_KEYS = itertools.count(1)


def note(text: str, **more: Any) -> dict[str, Any]:
    return {"op": "create", "schema": "source", "value": {"text": text}, **more}


def a_batch(*changes: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A batch under a key that no other has, unless one is given."""
    return {"space": SPACE, "idempotency_key": f"key {next(_KEYS)}", "changes": list(changes), **more}


def write(store: Store, *changes: Mapping[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The results, one a change, once every index has applied them."""
    result: list[dict[str, Any]] = store.write(a_batch(*changes, **more)).to_dict()["results"]
    store.wait_until_current(60)
    return result


def refusal(call: Callable[[], Any]) -> AtomlogError:
    """The typed error of a call that must be refused; its texts can be printed."""
    with pytest.raises(AtomlogError) as caught:
        call()
    error = caught.value
    error.message.encode()
    for detail in error.details:
        str(detail).encode()
    assert len(error.message) < 2_000
    return error


def paths(error: AtomlogError) -> list[str]:
    return [str(detail["path"]) for detail in error.details]


def recalled(store: Store, text: str | None = None, **more: Any) -> Page:
    """A recall after everything that was written has its vector, so that nothing is missing for that reason."""
    for _ in range(TRIES_MAX):
        store.wait_until_current(60)
        page = store.recall(text, **{"space": SPACE, "timeout_s": 60, **more})
        if page.diagnostics.unembedded == 0:
            return page
    raise AssertionError(f"{page.diagnostics.unembedded} rows have no vector")


def texts(page: Page) -> list[str]:
    return [row.value["text"] for row in page.atoms]
