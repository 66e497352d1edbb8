"""Tests of lag are coroutines, each in an event loop of its own."""

from tests.support.coroutines import pytest_pyfunc_call as pytest_pyfunc_call
