"""completion: the script that makes a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from atomlog.consumers.cli.output import emit_bytes
from atomlog.consumers.cli.session import example


@click.command(
    epilog=example(
        'eval "$(atomlog completion bash)"', "atomlog completion fish > ~/.config/fish/completions/atomlog.fish"
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """The completion script of a shell, to be evaluated at its start."""
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    emit_bytes(found(root, {}, "atomlog", "_ATOMLOG_COMPLETE").source().encode() + b"\n")


COMMANDS = (completion,)
