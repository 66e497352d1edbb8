"""Coroutines are tests here, too."""

from tests.support.coroutines import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
