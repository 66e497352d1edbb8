"""P12: how fast a log on Kafka becomes an index, against aiokafka alone that reads the same topic and does nothing."""

import asyncio
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.consumers.bench import kafka_peers
from atomlog.consumers.bench.corpus import Corpus
from atomlog.consumers.bench.kafka_nodes import make_nodes, opened_node, owning, required_brokers
from atomlog.consumers.bench.ladder import Bench, Goal, KafkaRung, Measure, Sample, Scale
from atomlog.consumers.bench.replay import MIB, applied
from atomlog.consumers.bench.stopwatch import stopwatch
from atomlog.consumers.processes import make_no_cycles
from atomlog.consumers.rebuild import first_error, rebuild
from atomlog.kernel.model import LOCAL_PRINCIPAL
from atomlog.kernel.requests import parse_write

REVISIONS: Final[Mapping[Scale, int]] = {"smoke": 500, "small": 5_000, "normal": 50_000, "large": 200_000}
INDEXES: Final = ("ids", "relations", "postings")
NODE: Final = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What all of P12 shares: the log and the base."""

    id: str
    title: str
    nodes: int = 1
    unit: str = "revisions/s"
    measure: Measure = "rate"
    base_name: str = "aiokafka getmany of the same topic"
    goals: Sequence[Goal] = ()
    peers: Sequence[str] = ()
    notes: str = field(
        default="The base reads every record of the topic, fifty revisions each, and looks at none of them. "
        "One process; the garbage collector is set as in the process of a rebuild."
    )

    def prepare(self, bench: Bench) -> None:
        asyncio.run(self._prepare(bench))

    def ours(self, bench: Bench) -> Sample:
        raise NotImplementedError

    def base(self, bench: Bench) -> Sample:
        return asyncio.run(self._base(bench))

    async def _prepare(self, bench: Bench) -> None:
        await make_nodes(bench, (NODE,))
        corpus = Corpus()
        async with (
            opened_node(f"{bench.directory}/{NODE}", bench.machine, read_only=False) as parts,
            owning(parts, (0,)) as owners,
        ):
            while corpus.revisions < REVISIONS[bench.scale]:
                corpus.accept(await owners.write(parse_write(corpus.next_write()), LOCAL_PRINCIPAL))

    async def _base(self, bench: Bench) -> Sample:
        make_no_cycles()
        async with opened_node(f"{bench.directory}/{NODE}", bench.machine) as parts:
            assert parts.shared is not None
            topic, end = parts.shared.names.atoms, await parts.log.end(0)
        bootstrap, units = required_brokers(bench), REVISIONS[bench.scale]
        took, count, size = await kafka_peers.consume(bootstrap, topic, 0, end, clock=bench.machine.clock)
        figures = {"mib_s": size / MIB / took.wall_s, "bytes_record": size / count}
        checked = units if count == end else 0
        return Sample(units=units, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=checked, figures=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedInto(Consumed):
    """`name` of the projection."""

    name: str

    def ours(self, bench: Bench) -> Sample:
        make_no_cycles()
        return asyncio.run(self._ours(bench))

    async def _ours(self, bench: Bench) -> Sample:
        async with opened_node(f"{bench.directory}/{NODE}", bench.machine) as parts:
            return await applied(bench, parts, self.name, REVISIONS[bench.scale])


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltFrom(Consumed):
    """Ids, relations and postings, a process each, compared with those that are there."""

    async def _prepare(self, bench: Bench) -> None:
        await Consumed._prepare(self, bench)  # a class with slots is another one than `super` knows
        await self._rebuild(bench)

    def ours(self, bench: Bench) -> Sample:
        with stopwatch(bench.machine.clock) as took:
            equal = asyncio.run(self._rebuild(bench))
        units = REVISIONS[bench.scale]
        figures = {"peak_rss_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MIB}
        checked = units if equal else 0
        return Sample(units=units, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=checked, figures=figures)

    async def _rebuild(self, bench: Bench) -> bool:
        """Whether what was there before was equal."""
        reports = await rebuild(f"{bench.directory}/{NODE}", INDEXES, processes=2)
        error = first_error(reports)
        if error is not None:
            raise error
        return all(report.equal for report in reports) and len(reports) == len(INDEXES)


KAFKA_REPLAY_RUNGS: Final[tuple[KafkaRung, ...]] = (
    *(ConsumedInto(id=f"P12-{name}", name=name, title=f"A log on Kafka read into {name}") for name in INDEXES),
    RebuiltFrom(
        id="P12-rebuild",
        title="Rebuilding ids, relations and postings from Kafka and comparing them with the live ones",
        notes="Three indexes, by two processes at a time; the base reads the topic once and looks at nothing.",
    ),
)
