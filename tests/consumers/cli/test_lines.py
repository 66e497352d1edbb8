"""Lines of standard input, whatever it is: a pipe, a file, something in memory."""

import asyncio
import io
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from atomlog.consumers.cli.lines import lines


def read(stream: BinaryIO, line_bytes_max: int = 1_000) -> list[tuple[int, bytes | None]]:
    async def collect() -> list[tuple[int, bytes | None]]:
        return [line async for line in lines(stream, line_bytes_max=line_bytes_max)]

    return asyncio.run(collect())


@pytest.mark.parametrize("kind", ["memory", "file", "pipe"])
def test_lines_are_numbered_and_blank_ones_left_out(kind: str, tmp_path: Path) -> None:
    data = b"one\n\n  \nfour\r\nfive"
    expected = [(1, b"one"), (4, b"four\r"), (5, b"five")]
    if kind == "memory":
        assert read(io.BytesIO(data)) == expected
    elif kind == "file":
        (tmp_path / "f").write_bytes(data)
        with (tmp_path / "f").open("rb") as file:
            assert read(file) == expected
    else:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert read(pipe) == expected


def test_a_byte_order_mark_before_the_first_line_is_left_out() -> None:
    mark = b"\xef\xbb\xbf"
    assert read(io.BytesIO(mark + b"{}\r\n" + mark + b"{}")) == [(1, b"{}\r"), (2, mark + b"{}")]
    assert read(io.BytesIO(mark + b"\n{}")) == [(2, b"{}")]


def test_a_line_beyond_the_limit_is_not_held() -> None:
    assert read(io.BytesIO(b"x" * 200_000 + b"\nok\n" + b"y" * 2_000), 1_000) == [(1, None), (2, b"ok"), (3, None)]


def test_other_work_goes_on_while_a_pipe_is_quiet() -> None:
    reading, writing = os.pipe()

    async def both() -> list[tuple[int, bytes | None]]:
        with os.fdopen(reading, "rb") as pipe:
            source = lines(pipe, line_bytes_max=100)
            waiting = asyncio.ensure_future(anext(source))
            await asyncio.sleep(0)
            assert not waiting.done()
            os.write(writing, b"late\n")
            first = await waiting
            os.close(writing)
            return [first, *[line async for line in source]]

    assert asyncio.run(both()) == [(1, b"late")]
