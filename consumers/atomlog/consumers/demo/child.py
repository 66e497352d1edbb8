"""The process that the demonstration kills: imports a file, and says after each acknowledged write how many there are.

`python -m atomlog.consumers.demo.child DIRECTORY FILE SPACE`
"""

import asyncio
import sys

from atomlog.consumers.demo.importing import import_file


def main(directory: str, path: str, space: str) -> None:
    """Import until the end, or until somebody ends this process."""
    count = 0

    def written() -> None:
        nonlocal count
        count += 1
        sys.stdout.write(f"{count}\n")
        sys.stdout.flush()

    asyncio.run(import_file(directory, path, space, written=written))


if __name__ == "__main__":
    main(*sys.argv[1:4])
