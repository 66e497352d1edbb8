"""init."""

from typing import Any

import click

from atomlog.consumers.cli.output import counted, emit, emit_json
from atomlog.consumers.cli.session import Session, example, run, say, settings, with_session
from atomlog.consumers.machine import MASTER_KEY, Machine
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import PARTITIONS, SHARD_ROWS, VECTOR_SPACES
from atomlog.kernel.ids import format_id, invalid

PARTITIONS_HELP = f"Parts of the log; fixed for ever.  [default: {PARTITIONS}; of a shared store 8]"
OF_NODE = ("kafka_config", "prefix", "replication", "blobs", "node_pem", "allow_weak")


@click.command(
    epilog=example(
        "atomlog init --store ./notes --partitions 4",
        "atomlog init --store ./node --kafka kafka-1:9092,kafka-2:9092 --partitions 16",
        "atomlog init --store ./node --kafka kafka-1:9092 --master-key master.key --node-pem node.pem",
    )
)
@click.option("--partitions", type=int, metavar="N", help=PARTITIONS_HELP)
@click.option("--shard-rows", type=int, metavar="N", help=f"Rows of a vector shard.  [default: {SHARD_ROWS}]")
@click.option(
    "--vector-space",
    "vector_spaces",
    multiple=True,
    metavar="ID",
    help=f"A vector space, ENCODER/VERSION/DIM/METRIC.  [default: {VECTOR_SPACES[0]}]",
)
@click.option("--kafka", metavar="HOST:PORT,…", help="Make a node of the shared store on these brokers, or a new one.")
@click.option("--kafka-config", metavar="FILE", help="How to connect to them: a kafka.toml, to be copied.")
@click.option("--prefix", metavar="NAME", help="How the names of its topics begin.  [default: atomlog]")
@click.option("--replication", type=int, metavar="N", help="Copies of each topic that is made.  [default: 3]")
@click.option("--blobs", metavar="DIR", help="Where blobs are: a directory that every node reaches.")
@click.option("--node-pem", metavar="FILE", help="To join: node.pem of another node, to be copied.")
@click.option("--allow-weak", multiple=True, metavar="SETTING", help="May be less safe than is needed; repeatable.")
@with_session
def init(session: Session, kafka: str | None, vector_spaces: tuple[str, ...], **options: Any) -> None:
    """Make a store in an absent or empty directory, or a node of a shared one."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if vector_spaces:
        given["vector_spaces"] = vector_spaces
    if kafka is not None:
        _init_node(session, kafka, given)
        return
    for name in OF_NODE:
        if name in given:
            raise invalid(f"--{name.replace('_', '-')}", "this goes with --kafka only")
    config = run(AsyncStore.init(session.directory, master_key_file=session.master_key_file, **given))
    made = {**config.to_dict(), "log_id": format_id(config.log_id)}
    if session.as_json:
        emit_json(made)
    else:
        emit(f"made a store in {session.directory}: log {made['log_id']}, {counted(config.partitions, 'partition')}")
    key = session.master_key_file or f"{session.directory}/{MASTER_KEY}"
    say(f"{key} is the master key: without it no content can be read. Keep a copy elsewhere.")


def _init_node(session: Session, kafka: str, given: dict[str, Any]) -> None:
    from atomlog.consumers.cluster.creation import create_node
    from atomlog.consumers.cluster.founding import NodeRequest

    request = NodeRequest(bootstrap=kafka, master_key=session.master_key_file, **given)
    made = run(create_node(session.directory, request, machine=Machine(), settings=settings()))
    config = made.config
    shown = {
        **config.to_dict(),
        "log_id": format_id(config.log_id),
        "joined": made.joined,
        "lacks": list(made.lacks),
    }
    if session.as_json:
        emit_json(shown)
    else:
        what = "joined the store" if made.joined else "made the store"
        emit(f"{what} below {request.prefix}: log {shown['log_id']}, {counted(config.partitions, 'partition')}")
    if not made.joined:
        if request.master_key or request.node_pem:
            say(f"there was no store below {request.prefix}: this is a new one. To join another, give its --prefix.")
        say(f"{session.directory} has the store's master.key and node.pem: every other node needs copies of both.")
        say("Without the master key no content can be read; who has node.pem is a node. Keep copies elsewhere.")
    for name in made.lacks:
        say(f"{name} is missing: copy it from another node to {session.directory}/{name}, with mode 600.")


COMMANDS = (init,)
