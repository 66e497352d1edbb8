"""What a failed fsync leaves behind: pages that look written, and that no later sync writes by itself."""

from collections.abc import Sequence

import pytest

from tests.statemachine.machine import EmbeddedLogMachine


def test_a_group_whose_sync_failed_is_durable_when_the_next_owner_has_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = EmbeddedLogMachine()
    machine.begin(0)
    cluster = machine.c
    # 1. The process ends at the failed sync of a group; who comes next sees the group in the page cache.
    next_call = cluster.calls.next

    def failing(what: str, can: Sequence[str]) -> str | None:
        if " sync " in what and what.endswith(".seg"):
            monkeypatch.undo()
            return "EIO"
        return next_call(what, can)

    monkeypatch.setattr(type(cluster.calls), "next", lambda _, what, can: failing(what, can))
    machine.send(0, {"space": "notes", "idempotency_key": "k", "changes": [NOTE]})
    cluster.loop.pass_time(100_000)
    assert cluster.node(0) is None, "the process has not ended"
    assert cluster.start(1), cluster.why
    end = cluster.look()
    assert end == 3
    # 2. After a power cut it is still there: that owner has told everybody of it.
    cluster.machine.cut_power()
    cluster.restart_follower()
    assert cluster.start(2), cluster.why
    assert cluster.published() == end
    machine.teardown()


NOTE = {"op": "create", "schema": "note", "value": {"text": "a note"}}
