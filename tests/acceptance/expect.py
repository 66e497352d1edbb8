"""What a test expects of a request that must fail."""

from collections.abc import Awaitable
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError


async def refused(work: Awaitable[Any], code: str) -> AtomlogError:
    """The error of this code that the work must end with."""
    with pytest.raises(AtomlogError) as caught:
        await work
    assert caught.value.code == code, caught.value
    return caught.value
