"""`python -m deploy.kafka.around --nodes 3 -- COMMAND …`: brokers as long as the command runs, and no longer.

The command finds their addresses in ATOMLOG_BENCH_KAFKA. Their data lies in a temporary directory (TMPDIR).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.kafka.brokers import Brokers
from deploy.kafka.errors import LauncherError
from deploy.kafka.runtime import prepare

VARIABLE = "ATOMLOG_BENCH_KAFKA"
HEAP = "512m"


def main(arguments: list[str]) -> int:
    """The exit code of the command; 1 when there are no brokers for it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.kafka.around", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, choices=[1, 3], help="how many brokers (default 1)")
    parser.add_argument("command", nargs="+", help="what runs beside them")
    asked = parser.parse_args(arguments)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="atomlog-brokers-") as directory,
            Brokers(prepare(), Path(directory), count=asked.nodes, heap=HEAP).start() as brokers,
        ):
            environment = {**os.environ, VARIABLE: brokers.bootstrap}
            return subprocess.run(asked.command, env=environment, check=False).returncode
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
