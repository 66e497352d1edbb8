"""A container's health check: `healthy.py listening PORT`, or `healthy.py following STORE NAME…`."""

import json
import socket
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """0 if it does, 1 with a line that says what is wrong."""
    action, *rest = arguments
    wrong = listening(int(rest[0])) if action == "listening" else following(Path(rest[0]), rest[1:])
    print(wrong or "healthy")
    return 1 if wrong else 0


def listening(port: int) -> str | None:
    """What is wrong when nobody takes connections at this host's name."""
    try:
        socket.create_connection((socket.gethostname(), port), timeout=3).close()
    except OSError as error:
        return f"nobody listens at port {port}: {error}"
    return None


def following(store: Path, names: list[str]) -> str | None:
    """What is wrong when one of these projections is not followed, or stands still, by its own note."""
    for name in names:
        try:
            note = json.loads((store / "projections" / name / "health.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return f"{name} has no note of its health: {error}"
        if note["pid"] is None:
            return f"nobody follows {name}"
        if note["health"] == "STOPPED":
            return f"{name} stands still: {note['error']}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
