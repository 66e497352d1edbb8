from collections.abc import Iterator

import pytest

from atomlog.client import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for the tests of a module; each uses atoms of its own."""
    with Store.open(str(tmp_path_factory.mktemp("hostile") / "store")) as opened:
        yield opened
