"""kernel, and move owner: owning partitions of a shared store. Docs: docs/kafka.md."""

import click

from atomlog.consumers.assignment import parse_assignment
from atomlog.consumers.cli.output import emit, emit_event, emit_json
from atomlog.consumers.cli.session import Session, example, run, settings, with_session
from atomlog.consumers.cluster.kernel import move_owner, run_kernel


@click.command(
    epilog=example(
        "atomlog kernel --listen 10.0.0.7:7420",
        "atomlog kernel --listen 0.0.0.0:7420 --advertise kernel-1.internal --partitions 0-7 --metrics :9464",
    )
)
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where other nodes reach it; port 0: a free one.")
@click.option("--advertise", metavar="HOST", help="The host that other nodes are told, where it is another one.")
@click.option("--name", metavar="NAME", help="What people call it.  [default: where it listens]")
@click.option("--partitions", metavar="N,…", help="Those meant for this node, e.g. 0,2 or 0-3; or all.  [default: all]")
@click.option("--metrics", metavar="HOST:PORT", help="Serve a page for Prometheus there.")
@click.option("--allow-weak", multiple=True, metavar="SETTING", help="May be less safe than is needed; repeatable.")
@with_session
def kernel(
    session: Session,
    *,
    listen: str,
    advertise: str | None,
    name: str | None,
    partitions: str | None,
    metrics: str | None,
    allow_weak: tuple[str, ...],
) -> None:
    """Own partitions of a shared store in a process of its own, until SIGTERM or Ctrl-C.

    What happens is printed, a line of JSON each.
    """
    code = run(
        run_kernel(
            session.directory,
            listen=listen,
            advertise=advertise,
            name=name,
            partitions=parse_assignment(partitions, "--partitions"),
            metrics_address=metrics,
            allow_weak=allow_weak,
            settings=settings(),
            master_key_file=session.master_key_file,
            on_event=emit_event,
        )
    )
    click.get_current_context().exit(code)


@click.group()
def move() -> None:
    """Planned changes of a shared store."""


@move.command(
    epilog=example("atomlog move owner --partition 3 --to kernel-2", "atomlog move owner --partition 3"),
)
@click.option("--partition", type=int, required=True, metavar="N", help="The partition.")
@click.option("--to", metavar="NODE", help="A kernel's name or endpoint.  [default: any other one]")
@with_session
def owner(session: Session, *, partition: int, to: str | None) -> None:
    """Hand a partition over to another kernel: the owner answers what it has in hand, and the next one claims."""
    moved = run(move_owner(session.directory, partition, to=to, settings=settings(), on_event=session.say_event))
    if session.as_json:
        emit_json(dict(moved))
    else:
        emit(f"partition {moved['partition']}: {moved['node']} at {moved['endpoint']}, term {moved['term']}")


COMMANDS = (kernel, move)
