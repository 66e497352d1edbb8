"""The Nth call fails, for N = 1, 2, 3, …: in every way in which it can, and as the last one of its process."""

import pytest

from tests.simulation.sweep import baseline, cases, with_fault

PARTS = 4


def test_nothing_is_wrong_when_no_call_fails() -> None:
    ended = baseline()
    assert ended.error is None
    assert ended.batches > 5
    kinds = {what.split()[1] for what, _ in ended.calls.made}
    assert kinds >= {"append", "sync", "sync_directory", "replace", "truncate", "kv.write", "kv.sync", "keys.put"}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(600)
def test_whichever_call_fails_nothing_acknowledged_is_lost_and_it_goes_on(part: int) -> None:
    failed = []
    for number, fault in list(cases(baseline().calls.made))[part::PARTS]:
        ended = with_fault(number, fault)
        if ended.error is not None:
            failed.append(f"{fault} at call {number}: {ended.calls.met}: {ended.error!r}")
    assert not failed, "\n".join(failed)
