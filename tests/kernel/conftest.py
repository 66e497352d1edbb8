"""Tests may be coroutines."""

from tests.support.coroutines import pytest_pyfunc_call as pytest_pyfunc_call
