"""Random bytes that are drawn ahead: nobody is ever given the same ones, another thread and a forked child included."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from atomlog.kernel.system import SystemRandomness

FORKS = """
import os
from atomlog.kernel.system import SystemRandomness

draw = SystemRandomness()
draw.token(12)  # a block is drawn ahead now
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b"".join(draw.token(16) for _ in range(64)))
    os._exit(0)
os.wait()
child, parent = os.read(reader, 1024), b"".join(draw.token(16) for _ in range(64))
assert len(child) == len(parent) == 1024
print(len({data[at : at + 16] for data in (child, parent) for at in range(0, 1024, 16)}))
"""


@pytest.mark.parametrize("size", [1, 10, 12, 16, 17, 32, 8_192])
def test_a_token_has_the_size_that_was_asked_for_and_comes_once(size: int) -> None:
    tokens = [SystemRandomness().token(size) for _ in range(1_000 if size > 1 else 1)]
    assert {len(token) for token in tokens} == {size}
    assert size < 10 or len(set(tokens)) == len(tokens)


def test_threads_are_given_different_bytes() -> None:
    def draw(_: int) -> list[bytes]:
        return [SystemRandomness().token(12) for _ in range(2_000)]

    with ThreadPoolExecutor(8) as threads:
        tokens = [token for drawn in threads.map(draw, range(16)) for token in drawn]
    assert len(set(tokens)) == len(tokens)


def test_a_forked_child_does_not_draw_what_its_parent_draws() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False)
    assert done.stdout == "128\n", done.stderr
