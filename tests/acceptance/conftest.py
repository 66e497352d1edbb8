"""Acceptance tests are coroutines; a module's tests share one event loop and, where they ask for it, one store."""

import asyncio
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.data import test_data as test_data
from tests.support.deployments import KINDS, Deployment, Shape, deploy
from tests.support.kafka import SharedBroker

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of the module's tests and of its deployments."""
    with asyncio.Runner() as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a store run in one worker (with `--dist loadgroup`), so that it is made once."""
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and isinstance(item, pytest.Function) and _kind(item) in KINDS and KINDS[_kind(item)].needs_broker:
            item.add_marker("kafka")
        if here and isinstance(item, pytest.Function) and "deployment" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {_kind(item)}"))


def _kind(item: pytest.Function) -> str:
    """The deployment that a test runs on; empty where it chooses none."""
    chosen = item.callspec.params if hasattr(item, "callspec") else {}
    return str(chosen.get("deployment", chosen.get("kind", "")))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    running = pyfuncitem.funcargs["runner"]
    assert isinstance(running, asyncio.Runner)
    running.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def shape() -> Shape:
    """The store that a module wants; overridden there."""
    return Shape()


@pytest.fixture(scope="module", params=tuple(KINDS))
def deployment(
    request: pytest.FixtureRequest, runner: asyncio.Runner, shape: Shape, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """A running store, one for all tests of a module. Each test writes to a `space` of its own."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    broker = request.getfixturevalue("kafka") if KINDS[request.param].needs_broker else None
    deployed = runner.run(deploy(request.param, folder, shape, broker=broker))
    yield deployed
    runner.run(deployed.close())


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> SharedBroker | None:
    """For a test that deploys a `kind` itself."""
    needs_broker = KINDS[request.getfixturevalue("kind")].needs_broker
    return request.getfixturevalue("kafka") if needs_broker else None


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    """A space that no other test uses, named after this one."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_").lower())
    return f"{name[:48].strip('-')}-{next(_NUMBERS)}"
