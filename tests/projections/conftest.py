"""What the tests of projections share."""

import pytest

from tests.projections.stores import NewKv, memory, rocks


@pytest.fixture(params=["memory", "rocks"])
def new_kv(request: pytest.FixtureRequest) -> NewKv:
    """Makes new, empty stores of one kind."""
    return {"memory": memory, "rocks": rocks}[request.param]
