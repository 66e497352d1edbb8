"""The root of the command tree."""

import click


@click.group(name="atomlog")
@click.version_option(package_name="atomlog", prog_name="atomlog", message="%(prog)s %(version)s")
def main() -> None:
    """An event-sourced memory store for agents and knowledge systems."""
