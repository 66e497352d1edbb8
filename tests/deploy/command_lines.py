"""Command lines that the files of deploy/ have, held against the command itself."""

import click
import pytest

from atomlog.consumers.cli.main import main


def check_command_line(argv: list[str]) -> None:
    """Parses `atomlog ARGV…` as the command would, and runs nothing. A usage error fails the test."""
    name, *rest = argv
    root = main.make_context("atomlog", [name], resilient_parsing=True)
    command = main.get_command(root, name)
    assert command is not None, f"there is no command {name}"
    try:
        command.make_context(name, rest, parent=root)
    except click.UsageError as error:
        pytest.fail(f"atomlog {' '.join(argv)}: {error.format_message()}")
