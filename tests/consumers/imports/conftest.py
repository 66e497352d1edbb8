from tests.support.data import test_data

__all__ = ["test_data"]
