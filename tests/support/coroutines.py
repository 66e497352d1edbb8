"""Tests that are coroutines, each in an event loop of its own. A conftest imports the hook."""

import asyncio
import inspect

import pytest

DEADLINE_SECONDS = 60.0  # only ends a test that has failed; `pytest.mark.timeout` says another


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    marker = pyfuncitem.get_closest_marker("timeout")
    deadline_seconds = float(marker.args[0]) if marker is not None else DEADLINE_SECONDS

    async def bounded() -> None:
        async with asyncio.timeout(deadline_seconds):
            await test(**arguments)

    asyncio.run(bounded())
    return True
