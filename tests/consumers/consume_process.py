"""`python -m tests.consumers.consume_process STORE NAME…`: events as lines on stdout, errors as the exit code."""

import asyncio
import sys

from atomlog.consumers.consume import run_consumer
from atomlog.consumers.events import Event
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError
from tests.consumers.worlds import QUICK


def say(event: Event) -> None:
    sys.stdout.write(jsontext.dumps(event).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    wait = "--wait" in sys.argv
    names = [name for name in sys.argv[2:] if not name.startswith("--")]
    try:
        consuming = run_consumer(sys.argv[1], names, settings=QUICK, on_event=say, wait=wait, status_seconds=0.05)
        return asyncio.run(consuming)
    except AtomlogError as error:
        say({"event": "failed", "error": error.to_dict()})
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
