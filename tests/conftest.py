"""What every test may use."""

import os

import pytest
from hypothesis import settings

from tests.support.kafka import kafka, kafka_prefix, pytest_runtest_makereport

__all__ = ["kafka", "kafka_prefix", "pytest_runtest_makereport"]  # of every folder

# Time limits belong to pytest-timeout: a slow machine must not make a property fail.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kafka: needs a real broker; chosen by -m kafka")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker("kafka")
