"""The root of the command tree. A command's module is loaded when the command is used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

from atomlog.consumers.cli.session import STORE, Root

# Command → the module that has it in its COMMANDS, and the first sentence of its help; a test holds them together.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "bench": ("bench", "Measure the performance ladder: this store beside bare libraries and a peer, as ratios."),
    "completion": ("completion", "The completion script of a shell, to be evaluated at its start."),
    "consume": (
        "operate",
        "Follow the log for these projections in a process of its own, until SIGTERM or Ctrl-C.",
    ),
    "demo": ("showing", "The main job on bundled notes, narrated."),
    "export": ("export", "Write the store's tables as Parquet files, for DuckDB, Polars, pandas."),
    "get": ("reads", "Atoms by id: their heads, or as of a position or time."),
    "groups": ("reads", "The groups that an atom is a member of."),
    "history": ("reads", "Every revision of an atom, oldest first."),
    "import": ("imports", "Take real sources in."),
    "inbox": ("inboxes", "Topics that principals write requests to, from any Kafka client."),
    "init": ("creating", "Make a store in an absent or empty directory, or a node of a shared one."),
    "kernel": ("cluster", "Own partitions of a shared store in a process of its own, until SIGTERM or Ctrl-C."),
    "log": ("operate", "The log itself."),
    "members": ("reads", "The members of a group: (GROUP or --or …) and --and … but not --not …."),
    "move": ("cluster", "Planned changes of a shared store."),
    "outcome": ("receipts", "What is known of an idempotency key: accepted, never, or unknown."),
    "quote": (
        "reads",
        "The exact bytes of the N-th origin of an atom (from 0), checked against the digest taken when it was written.",
    ),
    "rebuild": (
        "operate",
        "Build projections anew from the log, compare them with the live ones, and exchange them.",
    ),
    "recall": ("reads", "Atoms by natural language, most relevant first."),
    "receipt": ("receipts", "What a read returned, and from what."),
    "relations": ("reads", "Who refers to an atom, or what an atom refers to."),
    "replay": ("operate", "Make a store as of then, in a directory of its own, for reading only."),
    "status": ("status", "Where each partition and each projection stands."),
    "verify": (
        "operate",
        "Build projections anew from the log and compare them with the live ones; change nothing.",
    ),
    "write": ("writes", "Write batches: one JSON object a line in, one result a line out."),
}


class Commands(Root):
    """Knows the commands by name and first sentence, so that help and version load none of what they need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"atomlog.consumers.cli.{COMMANDS[cmd_name][0]}")
        found: click.Command = next(command for command in module.COMMANDS if command.name == cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            shown = {name: click.Command(name, help=COMMANDS[name][1]) for name in self.list_commands(ctx)}
            formatter.write_dl([(name, one.get_short_help_str(limit)) for name, one in shown.items()])


@click.group(name="atomlog", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store", metavar="DIR", envvar="ATOMLOG_STORE", default=STORE, show_default=True, help="The store's directory."
)
@click.option(
    "--master-key",
    metavar="FILE",
    envvar="ATOMLOG_MASTER_KEY",
    help="The file with the store's master key.  [default: master.key in the store]",
)
@click.option("--verbose", is_flag=True, help="Say on stderr what consumers do, a line of JSON each.")
@click.version_option(package_name="atomlog", prog_name="atomlog", message="%(prog)s %(version)s")
def main(store: str, master_key: str | None, verbose: bool) -> None:
    """An event-sourced memory store for agents and knowledge systems.

    --store and --master-key may stand here or after the command.
    """
