"""inbox create, list, delete: who may write over a topic of its own. Docs: docs/producers.md."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import click

from atomlog.consumers.cli.output import emit, emit_json, emit_table
from atomlog.consumers.cli.session import Session, example, run, say, settings, with_session
from atomlog.consumers.cluster.inbox.admin import InboxAdmin, access_commands
from atomlog.consumers.cluster.inbox.registry import RIGHTS, Registration
from atomlog.consumers.machine import KAFKA_TOML, Machine
from atomlog.consumers.paths import checked_path
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import fail
from atomlog.kernel.kafka.client import KafkaClient
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.log.kafka import check_cluster

_AS: Final = click.option(
    "--kafka-config",
    metavar="FILE",
    help="Connect as this kafka.toml says, e.g. as one who may make topics.  [default: the node's]",
)


@click.group()
def inbox() -> None:
    """Topics that principals write requests to, from any Kafka client."""


@inbox.command(
    epilog=example("atomlog inbox create crawler", "atomlog inbox create crawler --partitions 4 --right mark-source")
)
@click.argument("principal", metavar="PRINCIPAL")
@click.option("--partitions", type=int, help="Of the inbox and of its results.  [default: those there, or 1]")
@click.option(
    "--right",
    "rights",
    multiple=True,
    type=click.Choice(RIGHTS),
    help="What it may do beside write: mark-source, say that what it writes is a source. Repeatable.",
)
@_AS
@with_session
def create(
    session: Session, principal: str, *, partitions: int | None, rights: Sequence[str], kafka_config: str | None
) -> None:
    """Make the two topics of a principal and register them; again, to change its rights."""

    async def work() -> tuple[Registration, list[str]]:
        async with _admin(session, kafka_config) as admin:
            made = await admin.create(principal, partitions=partitions, rights=frozenset(rights))
            kernel_user = _config(session, Machine()).sasl_username
            return made, access_commands(made, admin.prefix, admin.client.config.bootstrap, kernel_user)

    made, commands = run(work())
    if session.as_json:
        emit_json({**made.to_dict(), "access": commands})
        return
    _show(made)
    say(f"let {made.principal} alone write there; as an administrator of the brokers:")
    for command in commands:
        emit(command)


@inbox.command("list", epilog=example("atomlog inbox list"))
@_AS
@with_session
def list_(session: Session, *, kafka_config: str | None) -> None:
    """The inboxes that there are."""

    async def work() -> Sequence[Registration]:
        async with _admin(session, kafka_config) as admin:
            return await admin.all()

    found = run(work())
    if session.as_json:
        for one in found:
            emit_json(one.to_dict())
        return
    rows = [(one.principal, one.topic, one.results, one.partitions, ",".join(sorted(one.rights))) for one in found]
    emit_table(rows, heads=("principal", "inbox", "results", "partitions", "rights"))


@inbox.command(epilog=example("atomlog inbox delete crawler"))
@click.argument("principal", metavar="PRINCIPAL")
@_AS
@with_session
def delete(session: Session, principal: str, *, kafka_config: str | None) -> None:
    """End a registration: no kernel takes requests from there any more. The topics stay until they are deleted."""

    async def work() -> tuple[Registration, str]:
        async with _admin(session, kafka_config) as admin:
            return await admin.delete(principal), ",".join(admin.client.config.bootstrap)

    gone, bootstrap = run(work())
    topics = [f"kafka-topics.sh --bootstrap-server {bootstrap} --delete --topic {name}" for name in gone.topics]
    if session.as_json:
        emit_json({**gone.to_dict(), "remove": topics})
        return
    say("requests lie on the topics in plain text; to delete them at once:")
    for command in topics:
        emit(command)


def _show(one: Registration) -> None:
    emit_table(
        (
            ("principal", one.principal),
            ("inbox", one.topic),
            ("results", one.results),
            ("partitions", one.partitions),
            ("rights", ",".join(sorted(one.rights))),
            ("registration", one.id_text),
        )
    )


@asynccontextmanager
async def _admin(session: Session, kafka_config: str | None) -> AsyncIterator[InboxAdmin]:
    """What makes inboxes of the shared store that this node belongs to."""
    machine = Machine()
    config = StoreConfig.load(machine.files, session.directory)
    if config.kafka is None:
        what = "is a store of its own, not a node of one on Kafka; inboxes are topics"
        raise fail("INVALID_INPUT", f"{session.directory} {what}; see `atomlog init --kafka`")
    client = KafkaClient(_config(session, machine, kafka_config), timeout_s=settings().kafka_timeout_ms / 1_000)
    try:
        await client.start()
        check_cluster(await client.cluster_id(), config.kafka.cluster_id)
        yield InboxAdmin(client=client, prefix=config.kafka.prefix, clock=machine.clock)
    finally:
        await client.close()


def _config(session: Session, machine: Machine, path: str | None = None) -> KafkaConfig:
    """How the node connects, or what another file says."""
    path = checked_path(path or f"{session.directory}/{KAFKA_TOML}", "kafka_config")
    return KafkaConfig.load(machine.files, path, machine.environment)


COMMANDS = (inbox,)
