"""The real files, where they are used by several at once."""

import threading
from pathlib import Path

from atomlog.kernel.system import SystemFiles


def test_a_tree_that_two_remove_at_once_is_gone_for_both(tmp_path: Path) -> None:
    """As a reader that closes, and a follower that clears up after readers, do with the same scratch directory."""
    errors: list[BaseException] = []

    def remove(begin: threading.Barrier, path: Path) -> None:
        begin.wait()
        try:
            SystemFiles().remove_tree(str(path))
        except BaseException as error:
            errors.append(error)

    for turn in range(20):
        path = tmp_path / f"{turn}"
        for number in range(40):
            folder = path / f"{number % 4}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}").touch()
        begin = threading.Barrier(2)
        both = [threading.Thread(target=remove, args=(begin, path)) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert not path.exists()
    assert errors == []
