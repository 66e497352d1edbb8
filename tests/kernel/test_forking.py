"""A child that was forked while files were locked: it keeps no lock alive, and ends as its program says."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from atomlog.kernel.system import SystemFiles

PARENT = """
import os, sys, signal
from atomlog.kernel.system import SystemFiles

file = SystemFiles().open(sys.argv[1], write=True, create=True)
assert file.lock()
if os.fork() == 0:
    print("child", flush=True)
    signal.pause()
signal.pause()
"""

CHILD_ENDS = """
import os, sys
from atomlog.client import Store

store = Store.open(sys.argv[1])
if os.fork() == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
store.close()
"""


def test_a_lock_ends_with_the_process_that_took_it_although_a_forked_child_lives_on(tmp_path: Path) -> None:
    path = str(tmp_path / "locked")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, path], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "child\n"
        file = SystemFiles().open(path, write=True)
        assert not file.lock(), "the parent has it"
        parent.kill()
        parent.wait()
        assert file.lock(), "the child must not keep it"
        file.close()
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_a_forked_child_that_ends_as_python_does_is_not_killed_by_the_threads_it_has_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD_ENDS, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_never_takes_the_number_of_a_standard_stream(number: int, tmp_path: Path) -> None:
    script = f"""
import os
from atomlog.kernel.system import SystemFiles
os.close({number})
file = SystemFiles().open({str(tmp_path / "file")!r}, write=True, create=True)
file.append(b"data")
try:
    os.write({number}, b"a message of a library")
except OSError:
    file.append(b" alone")
"""
    with tempfile.TemporaryFile() as nothing:
        subprocess.run([sys.executable, "-c", script], stdin=nothing, stdout=nothing, stderr=nothing, check=True)
    assert (tmp_path / "file").read_bytes() == b"data alone"
