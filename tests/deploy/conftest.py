"""Coroutines are tests here, too; one secured broker serves all that ask for it."""

from tests.deploy.secured import secure
from tests.support.coroutines import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call", "secure"]
