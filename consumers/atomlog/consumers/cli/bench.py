"""bench."""

from typing import Final

import click

from atomlog.consumers.cli.output import emit_json, emit_table
from atomlog.consumers.cli.session import example, say
from atomlog.kernel.ids import invalid

ROUNDS_MAX: Final = 100
SCALES: Final = ("smoke", "small", "normal", "large")


@click.command(epilog=example("atomlog bench", "atomlog bench --only P1,P3-ids --rounds 5 --json"))
@click.option("--only", metavar="ID,…", help="Only these rungs; P3 stands for every P3-….")
@click.option("--rounds", type=click.IntRange(1, ROUNDS_MAX), default=3, show_default=True, help="Of each rung.")
@click.option("--scale", type=click.Choice(SCALES), default="normal", show_default=True, help="How much work.")
@click.option("--page", metavar="FILE", type=click.Path(dir_okay=False), help="Write the measured part of this page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(only: str | None, rounds: int, scale: str, page: str | None, *, as_json: bool) -> None:
    """Measure the performance ladder: this store beside bare libraries and a peer, as ratios.

    Each side runs in a process of its own, in turns; numbers are medians over the rounds.
    """
    from atomlog.consumers.bench.measure import measure  # brings in every engine; no other command needs it

    if only is not None and not only.strip():
        raise invalid("--only", "it names no rung")
    names = [] if only is None else [name.strip() for name in only.split(",")]
    found = measure(names, rounds=rounds, scale=scale, page=page, say=say)
    if as_json:
        emit_json({result.rung.id: result.to_dict() for result in found.results})
    else:
        emit_table(found.table(), ("id", "ours", "base", "ratio", "of CPU time", "goal", "met"))


COMMANDS = (bench,)
