"""status: once, or again and again, for people and for programs."""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from atomlog.consumers.cli.arguments import SECONDS
from atomlog.consumers.cli.output import emit, emit_bytes, emit_json, emit_table, printable
from atomlog.consumers.cli.session import Session, example, run, say, settings, with_session
from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.processes import process_id
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import UnavailableError
from atomlog.kernel.system import SystemClock, SystemFiles

if TYPE_CHECKING:
    from atomlog.consumers.store import AsyncStore

MIB: Final = 1024 * 1024
WATCH_S: Final = "2"
CLEAR: Final = b"\x1b[H\x1b[2J"  # of a terminal
UNKNOWN: Final = "-"


@click.command(epilog=example("atomlog status", "atomlog status --json", "atomlog status --watch 5"))
@click.option(
    "--watch",
    type=SECONDS,
    is_flag=False,
    flag_value=WATCH_S,
    metavar="[SECONDS]",
    help=f"Show it again so often, until Ctrl-C.  [{WATCH_S} without a number]",
)
@with_session
def status(session: Session, watch: float | None) -> None:
    """Where each partition and each projection stands.

    Of a shared store also what every other process said last of itself, and how long ago.
    """
    run(_once(session) if watch is None else _again_and_again(session, watch))


async def _once(session: Session) -> None:
    async with _opened(session, is_looking=False) as store:
        found = await store.status()
    _show(session, _without_this_process(found.to_dict()))


async def _again_and_again(session: Session, seconds: float) -> None:
    """Looks on, and takes nothing from anybody: no lock, no partition, no projection to follow."""
    is_terminal = sys.stdout.isatty() and not session.as_json
    async with _opened(session, is_looking=True) as store:
        while True:
            try:
                found = (await store.status()).to_dict()
            except UnavailableError as error:  # of brokers that are away: the next look may tell more
                say(printable(f"{error.code}: {error.message}"))
            else:
                if is_terminal:
                    emit_bytes(CLEAR)
                _show(session, found)
            await SystemClock().sleep(seconds)


@asynccontextmanager
async def _opened(session: Session, *, is_looking: bool) -> "AsyncIterator[AsyncStore]":
    """The store; of a node, and to look on, only what is there already is opened, for reading alone."""
    files = SystemFiles()
    config = StoreConfig.load(files, session.directory)
    if not is_looking and config.kafka is None:
        async with session.store() as store:
            yield store
        return
    from atomlog.consumers.store import AsyncStore

    made = [name for name in PROJECTIONS if files.exists(f"{session.directory}/projections/{name}/CURRENT")]
    async with AsyncStore.open(
        session.directory,
        create=False,
        read_only=True,
        projections=made,
        settings=settings(),
        master_key_file=session.master_key_file,
        on_event=session.say_event,
    ) as store:
        yield store


def _without_this_process(found: Mapping[str, Any]) -> dict[str, Any]:
    """A status that names others only: that this command held the store for a moment says nothing about it."""
    mine = process_id()
    partitions = [
        {**one, "owner": None} if (one["owner"] or {}).get("pid") == mine else one for one in found["partitions"]
    ]
    projections = [{**one, "follower": None} if one["follower"] == mine else one for one in found["projections"]]
    return {**found, "partitions": partitions, "projections": projections}


def _show(session: Session, found: Mapping[str, Any]) -> None:
    if session.as_json:
        emit_json(found)
        return
    emit(f"log {found['log_id']}")
    emit_table([_partition(one) for one in found["partitions"]], PARTITION)
    here = [_projection(one, "here") for one in found["projections"]]
    there = [_projection(one, _name(node)) for node in found["nodes"] for one in node["projections"]]
    emit_table(here + there, PROJECTION)
    emit(f"disk  {_disk(found['disk'])}")
    terms = {one["partition"]: one["term"] for one in found["partitions"]}
    for node in found["nodes"]:
        emit(f"{node['role']} {_name(node)}  {_heard(node, terms)}; disk  {_disk(node['disk'])}")
    for one in found["projections"]:
        if one["error"] is not None:
            say(printable(f"{one['name']}: {one['error']['code']}: {one['error']['message']}"))


PARTITION: Final = ("  partition", "end", "term", "batches", "in flight", "last claim", "void", "owner")
PROJECTION: Final = (
    *("  projection", "at", "generation", "health", "position", "lag", "seconds", "floor", "quarantined"),
    "bytes/revision",
)


def _partition(one: Mapping[str, Any]) -> Sequence[object]:
    return (
        f"  {one['partition']}",
        one["end"],
        _or(one["term"]),
        _or(one["effective_batches"]),
        _or(one["in_flight"]),
        _or(one["last_claim_at"] and one["last_claim_at"][:19] + "Z"),
        ", ".join(f"{count} {reason}" for reason, count in one["void"].items()) or "0",
        _owner(one["owner"]),
    )


def _owner(owner: Mapping[str, Any] | None) -> str:
    """A process of this machine by its number, a node by where it listens."""
    if owner is None:
        return "none"
    endpoint = str(owner.get("endpoint") or "")
    return endpoint if endpoint.startswith("tls:") else f"pid {owner.get('pid')}"


def _projection(one: Mapping[str, Any], where: str) -> Sequence[object]:
    """Of this directory, or of a node as it said of itself."""
    places = one["partitions"]
    seconds = [place["lag_s"] if "lag_s" in place else place["lag_ms"] / 1_000 for place in places]
    asof = one["asof"] if "asof" in one else {"floor": one["asof_floor"]}
    size = one["bytes_per_revision"]
    return (
        f"  {one['name']}",
        where,
        _or(one["generation"]),
        one["health"],
        ",".join(str(_readable(place)) for place in places) or UNKNOWN,
        sum(place["lag_records"] for place in places) if places else UNKNOWN,
        f"{max(seconds):.1f}" if seconds else UNKNOWN,
        _or(asof and asof["floor"]),
        _or(one["quarantined"]),
        UNKNOWN if size is None or size < 0 else f"{size:,.0f}",
    )


def _readable(place: Mapping[str, Any]) -> int:
    """Where it can be read; a node says what it applies next."""
    return int(place["position"]) - ("lag_ms" in place)


def _name(node: Mapping[str, Any]) -> str:
    return str(node["name"] or node["endpoint"] or node["node"])


def _heard(node: Mapping[str, Any], terms: Mapping[int, int | None]) -> str:
    """What it said last. One that is gone goes on saying that it owns what others have claimed since."""
    owned = [one for one in node["partitions"] if one["phase"] == "owner"]
    serves = [str(one["partition"]) for one in owned if one["term"] >= (terms.get(one["partition"]) or 0)]
    owns = f"owns {','.join(serves)}; " if serves else ""
    return f"{owns}pid {node['pid']}, heard {node['age_s']:.1f} s ago"


def _disk(disk: Mapping[str, Any]) -> str:
    free, reserve = disk["free_bytes"] / MIB, disk["reserve_bytes"] / MIB
    is_open = disk.get("accepting_writes", disk["free_bytes"] >= disk["reserve_bytes"])
    writes = "accepting writes" if is_open else "refusing writes until there is more"
    days = disk["days_to_full"]
    full = "" if days is None else f"; full in {days:,.0f} days" if days >= 1 else "; full in less than a day"
    return f"{free:,.0f} MiB free, reserve {reserve:,.0f} MiB; {writes}{full}"


def _or(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


COMMANDS = (status,)
