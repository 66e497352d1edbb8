"""demo."""

import click

from atomlog.consumers.cli.output import emit
from atomlog.consumers.cli.session import example, run
from atomlog.consumers.demo.story import run_demo


@click.command(epilog=example("atomlog demo", "atomlog demo --keep ./demo-store"))
@click.option("--keep", metavar="DIR", type=click.Path(file_okay=False), help="Make the store here, and leave it.")
def demo(keep: str | None) -> None:
    """The main job on bundled notes, narrated. Every claim is checked; takes well under a minute."""
    run(run_demo(emit, keep))


COMMANDS = (demo,)
