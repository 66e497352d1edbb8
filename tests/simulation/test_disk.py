"""The disk of the simulation: what a power cut and a failing call can leave, and what they cannot."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from tests.simulation.loop import SimulatedLoop
from tests.simulation.ports import (
    EIO,
    ENOSPC,
    KILLED,
    KILLED_AFTER,
    SHORT,
    Calls,
    Killed,
    Machine,
    Process,
    open_primary,
)

OLD, NEW = b"a" * 1_000, b"b" * 1_500


def machine_of(seed: int = 1) -> Machine:
    chance, trace = Random(seed), list[str]()
    loop = SimulatedLoop(chance, trace.append, spread=1, steps_max=1_000)  # type: ignore[abstract]
    return Machine(loop, chance, Calls(trace.append))


def process_of(machine: Machine) -> Process:
    return Process(machine, f"p{len(machine.processes)}", len(machine.processes))


def written(machine: Machine) -> Process:
    """A process with a durable file of OLD at /d/f."""
    process = process_of(machine)
    process.files.make_directory("/d")
    file = process.files.open("/d/f", write=True, create=True)
    file.append(OLD)
    file.sync()
    process.files.sync_directory("/d")
    process.files.sync_directory("")
    return process


def after_power_cuts(work: Callable[[Process], None]) -> set[bytes]:
    """What /d/f holds after `work` and a power cut, over many seeds."""
    found = set()
    for seed in range(200):
        machine = machine_of(seed)
        work(written(machine))
        machine.cut_power()
        found.add(process_of(machine).files.read("/d/f"))
    return found


def test_what_was_synced_is_there_after_any_power_cut() -> None:
    def work(process: Process) -> None:
        file = process.files.open("/d/f", write=True)
        file.append(NEW)
        file.sync()

    assert after_power_cuts(work) == {OLD + NEW}


def test_what_was_not_synced_may_be_lost_kept_torn_or_half_there() -> None:
    found = after_power_cuts(lambda process: process.files.open("/d/f", write=True).append(NEW))
    assert OLD in found
    assert OLD + NEW in found
    assert any(OLD < one < OLD + NEW for one in found)
    assert any(len(one) == len(OLD + NEW) and b"\0" in one for one in found)
    assert all(one.startswith(OLD) for one in found)


def test_a_name_is_durable_after_its_directory_was_synced_and_a_rename_is_whole() -> None:
    def rename(process: Process) -> None:
        file = process.files.open("/d/g", write=True, create=True)
        file.append(NEW)
        file.sync()
        process.files.replace("/d/g", "/d/f")

    def rename_and_sync(process: Process) -> None:
        rename(process)
        process.files.sync_directory("/d")

    assert after_power_cuts(rename) == {OLD, NEW}
    assert after_power_cuts(rename_and_sync) == {NEW}


def test_what_a_failed_sync_did_not_write_is_shown_and_lost_unless_it_is_written_again() -> None:
    def work(process: Process, *, again: bool) -> None:
        file = process.files.open("/d/f", write=True)
        file.append(NEW)
        process.machine.calls.faults[process.machine.calls.count + 1] = EIO
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        if again:
            file.write_at(len(OLD), NEW)
        file.sync()
        assert process.files.read("/d/f") == OLD + NEW

    assert {one.rstrip(b"\0") for one in after_power_cuts(lambda process: work(process, again=False))} == {OLD}
    assert after_power_cuts(lambda process: work(process, again=True)) == {OLD + NEW}


@pytest.mark.parametrize("fault", [EIO, ENOSPC, SHORT])
def test_a_write_fails_with_nothing_or_a_part_of_it_there(fault: str) -> None:
    machine = machine_of()
    process = written(machine)
    file = process.files.open("/d/f", write=True)
    machine.calls.faults[machine.calls.count + 1] = fault
    with pytest.raises(OSError) as caught:
        file.append(NEW)
    assert caught.value.errno == (errno.EIO if fault == EIO else errno.ENOSPC)
    left = process.files.read("/d/f")
    assert OLD <= left < OLD + NEW
    assert fault == SHORT or left == OLD


@pytest.mark.parametrize(("fault", "left"), [(KILLED, OLD), (KILLED_AFTER, OLD + NEW)])
def test_a_process_ends_before_or_after_a_call_and_its_lock_is_free(fault: str, left: bytes) -> None:
    machine = machine_of()
    process = written(machine)
    file = process.files.open("/d/f", write=True)
    assert file.lock()
    other = process_of(machine)
    assert not other.files.open("/d/f", write=True).lock()
    machine.calls.faults[machine.calls.count + 1] = fault
    with pytest.raises(Killed):
        file.append(NEW)
    with pytest.raises(Killed):
        file.append(NEW)
    assert other.files.read("/d/f") == left
    assert other.files.open("/d/f", write=True).lock()


def test_a_store_loses_what_was_written_last_and_never_something_before_it() -> None:
    lengths = set()
    for seed in range(100):
        machine = machine_of(seed)
        process = written(machine)
        kv = open_primary(process, "/d/db")
        process.files.sync_directory("/d")
        for number in range(10):
            kv.write([(bytes([number]), b"")])
            if number == 4:
                kv.sync()
        machine.cut_power()
        keys = [key for key, _ in open_primary(process_of(machine), "/d/db").scan(b"", b"\xff")]
        assert keys == [bytes([number]) for number in range(len(keys))]
        lengths.add(len(keys))
    assert lengths == set(range(5, 11))
