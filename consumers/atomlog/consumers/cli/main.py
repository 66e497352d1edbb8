"""The root of the command tree."""

import click

from atomlog.consumers.cli import bench, completion, imports, operate, reads, receipts, showing, writes
from atomlog.consumers.cli.session import STORE, Root


@click.group(name="atomlog", cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
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


for _module in (writes, reads, receipts, imports, operate, showing, bench, completion):
    for _command in _module.COMMANDS:
        main.add_command(_command)
