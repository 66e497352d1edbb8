"""After a power cut the published end of the log may be older than what indexes have applied, until an owner looks."""

from contextlib import closing
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.projections.read.reader import ReadOptions
from tests.statemachine.machine import EmbeddedLogMachine
from tests.statemachine.questions import selector

SEEDS = 20  # what a cut keeps is drawn
GROUP: dict[str, Any] = {"type": "members", "and": [], "or": [], "not": [], "include_retired": False}


def test_what_an_index_has_applied_can_be_read_before_an_owner_has_looked() -> None:
    stale = [seed for seed in range(SEEDS) if is_stale_and_readable(seed)]
    assert stale, "no cut has left an older end"


def is_stale_and_readable(seed: int) -> bool:
    machine = EmbeddedLogMachine()
    machine.begin(seed)
    with closing(machine.c) as cluster:
        machine.follow(("ids", "relations", "postings"), 9)
        end = machine.look()
        cluster.machine.cut_power()
        if cluster.published() > end - 2:
            return False
        versions = machine.course.model.versions
        group = next(atom for atom, (version, *_) in versions.items() if version.schema == "collection")
        ways: list[dict[str, Any]] = [{}, {"at": {0: end - 1}}, {"consistency": "version_pinned"}]
        for options in ways:
            page = machine.read({**GROUP, "group": group}, **options)
            assert page is not None
            assert page.receipt.observed() == {0: end - 1}
            assert len(page.atoms) == 1
        with pytest.raises(AtomlogError, match=r"OVERLOADED: .* write once, or read again later"):
            cluster.loop.until(cluster.reader.read(selector({**GROUP, "group": group}), ReadOptions(at={0: end - 2})))
        assert cluster.start(0), cluster.why
        machine.begin_paging({**GROUP, "group": group}, at={0: end - 2})
        return True
