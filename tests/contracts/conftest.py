"""Contract suites are modules that pytest does not collect by itself; their asserts shall explain themselves too."""

import pytest

pytest.register_assert_rewrite("tests.contracts.log_contract")
