"""What goes wrong before or while a broker runs, each with its way out in the message."""

from pathlib import Path

LAST_LINES = 12


class LauncherError(Exception):
    """Something that the person who started the launcher can mend; the message says how."""


class NotInstalled(LauncherError):
    """Java or Maven is missing or too old."""


class WrongJars(LauncherError):
    """A jar is missing, unknown, or not the one whose digest is listed."""


class PortTaken(LauncherError):
    """Another process listens where a broker should."""


class NodeDied(LauncherError):
    """A broker ended by itself; the message has the last lines of its log."""


class NotReady(LauncherError):
    """A broker runs and does not answer in time."""


def last_lines(log: Path) -> str:
    """The end of a log, indented, for a message."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = text.splitlines()[-LAST_LINES:] or ["(its log is empty)"]
    return "\n".join(f"    {line}" for line in lines)
