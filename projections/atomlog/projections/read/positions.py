"""At which position of each partition a read happens.

`snapshot`: the lowest that every index of the plan has applied. `version_pinned`: the lowest of ids, relations and
postings; vectors may be behind and then only propose candidates. A position or time that was asked for is taken
exactly, after waiting for the indexes; it is never replaced by another one.

While a read waits it holds no index: a rebuilt one may take over meanwhile, and is then the one that is read.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from atomlog.kernel.bounds import INTEGER_MAX
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Clock, Log
from atomlog.kernel.times import format_time
from atomlog.projections.read.indexes import VECTORS, CatchUp, Indexes, IndexSet, Standing, standing_of
from atomlog.projections.read.seen import Seen

SNAPSHOT: Final = "snapshot"
VERSION_PINNED: Final = "version_pinned"
MODES: Final = (SNAPSHOT, VERSION_PINNED)
RETRY_MS: Final = 200
WAITS_MAX: Final = 8  # times that a read waits; what it waits for can move on while it does


@dataclass(slots=True, kw_only=True)
class Asked:
    """How fresh or how old. `at`: a position of the partition `home` of what is asked for, or one a partition."""

    mode: str
    at: int | Positions | None = None
    as_of_us: int | None = None
    at_least: Positions | None = None

    @property
    def path(self) -> str:
        """Which part asks for a position."""
        return "as_of" if self.as_of_us is not None else "at_least" if self.at is None else "at"


@dataclass(slots=True, kw_only=True)
class Chosen:
    """The positions of a read, where the indexes of its plan stood, and the log's ends then.

    Reads share one while nothing moves; `seen` is what their receipts say of it, made with the first of them.
    """

    positions: Mapping[int, int]
    standings: Mapping[str, Standing]
    ends: Mapping[int, int]
    lag: Mapping[str, Mapping[int, int]]
    seen: Seen | None = None
    unreachable: tuple[Mapping[str, Any], ...] = ()  # partitions of indexes that the read had to do without

    async def still_holds(self, indexes: IndexSet, log: Log) -> bool:
        """Whether these indexes would be read at the same positions now, with the same lag."""
        for name, standing in self.standings.items():
            if not standing.is_of(getattr(indexes, name)):
                return False
        for partition, end in self.ends.items():
            if await log.end(partition) != end:
                return False
        return True


class Behind(Exception):
    """These indexes must first come to these positions; `error` is for the caller when they do not."""

    def __init__(self, names: Sequence[str], positions: Positions, error: AtomlogError) -> None:
        super().__init__(error.message)
        self.names = names
        self.positions = positions
        self.error = error


class Settled:
    """`async with`: indexes that have come as far as a read needs them, and its positions, until it is left.

    `choose` raises Behind. Entering raises INDEX_LAGGING or CONSISTENCY_UNAVAILABLE when waiting for the indexes of
    the plan, until the deadline, did not help.
    """

    __slots__ = ("_catch_up", "_choose", "_deadline_us", "_indexes", "_lease", "_plan")

    def __init__(
        self,
        indexes: Indexes,
        catch_up: CatchUp,
        plan: Sequence[str],
        choose: Callable[[IndexSet], Awaitable[Chosen]],
        deadline_us: int,
    ) -> None:
        self._indexes = indexes
        self._catch_up = catch_up
        self._plan = plan
        self._choose = choose
        self._deadline_us = deadline_us
        self._lease: AbstractAsyncContextManager[IndexSet] | None = None

    async def __aenter__(self) -> tuple[IndexSet, Chosen]:
        waited: set[tuple[tuple[int, int], ...]] = set()
        while True:
            try:
                return await self._leased()
            except Behind as found:
                behind = found
            target = tuple(sorted(behind.positions.items()))
            if target in waited or len(waited) == WAITS_MAX:
                raise behind.error
            waited.add(target)
            await self._catch_up(behind.names, behind.positions, self._deadline_us)

    async def _leased(self) -> tuple[IndexSet, Chosen]:
        """The indexes as they are, given back at once unless they are far enough."""
        lease = self._indexes.lease(self._plan)
        indexes = await lease.__aenter__()
        try:
            chosen = await self._choose(indexes)
        except BaseException:
            await lease.__aexit__(None, None, None)
            raise
        self._lease = lease
        return indexes, chosen

    async def __aexit__(self, *raised: object) -> None:
        assert self._lease is not None, "left before it was entered"
        await self._lease.__aexit__(None, None, None)


@dataclass(slots=True)
class Chooser:
    """Chooses the positions of one read from the indexes as they are. `plan` names those it needs.

    A read covers the partitions that all of them have here; `elsewhere` has made sure that those are enough.
    """

    indexes: IndexSet
    plan: Sequence[str]
    log: Log
    clock: Clock

    @property
    def covered(self) -> Sequence[int]:
        """The partitions that the read covers."""
        return self.indexes.held_by_all(self.plan)

    async def choose(self, asked: Asked, home: Callable[[], Sequence[int | None]]) -> Chosen:
        """`home`: finds the partitions of the atoms asked for, None for one that is unknown.

        Raises Behind, INVALID_INPUT, CONSISTENCY_UNAVAILABLE.
        """
        # 1. What the caller fixed: positions of some or all partitions.
        at_least = asked.at_least or {}
        self._check_at_least(at_least)
        fixed = await self._fixed(asked, home)
        # 2. Every index that must be there has applied what is fixed, what was asked for at least, and every floor.
        base, standings = self._base(asked.mode), self._standings()
        if fixed or at_least:
            _require(base, {**at_least, **fixed}, standings, asked.path)
        if any(standing.has_floor for standing in standings.values()):
            _require_floors(base, fixed, standings)
        # 3. Elsewhere: the lowest applied position of the indexes that must agree.
        positions = {
            partition: fixed[partition]
            if partition in fixed
            else min([standings[name].applied(partition) for name in base])
            for partition in self.covered
        }
        # 4. Nobody is asked below its floor.
        return await self._chosen(positions, standings)

    async def again(self, positions: Positions, mode: str) -> Chosen:
        """The positions of an earlier page, or of a receipt. Raises Behind, CONSISTENCY_UNAVAILABLE."""
        standings = self._standings()
        _require(self._base(mode), positions, standings, "at")
        return await self._chosen(dict(positions), standings)

    async def _chosen(self, positions: dict[int, int], standings: dict[str, Standing]) -> Chosen:
        problem = _below_floor(positions, standings)
        if problem is not None:
            raise problem
        ends = {partition: await self.log.end(partition) for partition in positions}
        lag = {name: standing.lag(ends) for name, standing in standings.items()}
        return Chosen(positions=positions, standings=standings, ends=ends, lag=lag)

    def _base(self, mode: str) -> list[str]:
        return [name for name in self.plan if mode == SNAPSHOT or name != VECTORS]

    def _standings(self) -> dict[str, Standing]:
        named, covered = self.indexes.named(self.plan).items(), self.covered
        return {name: standing_of(index, covered) for name, index in named}

    async def _fixed(self, asked: Asked, home: Callable[[], Sequence[int | None]]) -> dict[int, int]:
        if asked.as_of_us is not None:
            return await self._as_of(asked.as_of_us)
        if asked.at is None:
            return {}
        at = asked.at if isinstance(asked.at, Mapping) else self._at_home(asked.at, home)
        for partition, position in at.items():
            await self._check_position(partition, position)
        return dict(at)

    def _at_home(self, position: int, home: Callable[[], Sequence[int | None]]) -> dict[int, int]:
        if self.log.partitions == 1:
            return {0: position}
        partitions = home()
        if not partitions or None in partitions:
            raise invalid("at", "a position alone is one of the atom's own partition, which is not known; write P:N")
        return {partition: position for partition in partitions if partition is not None}

    def _check_at_least(self, at_least: Positions) -> None:
        for partition, position in at_least.items():
            self._check_shape("at_least", partition, position)

    def _check_shape(self, path: str, partition: object, position: object) -> None:
        if not _is_integer(partition) or not 0 <= partition < self.log.partitions:
            raise invalid(path, f"{shown(partition)} is no partition; there are {self.log.partitions}, from 0")
        if not _is_integer(position) or not -1 <= position <= INTEGER_MAX:
            raise invalid(path, f"{shown(position)} is no position; write a number from -1 on")

    async def _check_position(self, partition: int, position: int) -> None:
        self._check_shape("at", partition, position)
        end = await self.log.end(partition)
        if position >= end:  # after a power cut the published end may be older than what was applied
            end = max(end, self.indexes.ids.checkpoint(partition).position)
        if position >= end:
            raise invalid("at", f"{position} is beyond the end of partition {partition}; its last record is {end - 1}")

    async def _as_of(self, time_us: int) -> dict[int, int]:
        """The last position at or before a time, in every partition; ids must have all that was recorded by then."""
        now_us = self.clock.now_us()
        if time_us > now_us:
            raise invalid("as_of", f"{format_time(time_us)} is later than now, {format_time(now_us)}")
        ids = self.indexes.ids
        needed: dict[int, int] = {}
        for partition in self.covered:
            last_us = ids.last_time_us(partition)
            if last_us is None or last_us <= time_us:
                needed[partition] = await self.log.end(partition) - 1
        _require(["ids"], needed, {"ids": standing_of(ids, self.covered)}, "as_of")
        return {partition: ids.position_at(partition, time_us) for partition in self.covered}


PARTITION_DIGITS_MAX: Final = 10


def parse_at(value: object) -> int | dict[int, int] | None:
    """`at` from JSON: a position, or an object of partition to position (its keys may be text)."""
    if value is None or _is_integer(value):
        return value
    if not isinstance(value, Mapping) or not value:
        raise invalid("at", "must be a position, or an object of partition to position")
    positions: dict[int, int] = {}
    for partition, position in value.items():
        text = partition if isinstance(partition, str) else shown(partition)
        if not text.isascii() or not text.isdigit() or len(text) > PARTITION_DIGITS_MAX or not _is_integer(position):
            raise invalid("at", f"{shown(partition)} to {shown(position)} is no partition with its position")
        positions[int(text)] = position
    return positions


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(names: Sequence[str], wanted: Positions, standings: Mapping[str, Standing], path: str) -> None:
    """Raises Behind unless each of the indexes has applied these positions."""
    late = _late(names, wanted, standings)
    if late:
        raise Behind(late, wanted, _lagging(path, late, wanted, standings))


def _require_floors(names: Sequence[str], fixed: Positions, standings: Mapping[str, Standing]) -> None:
    """Where nothing is fixed, an index that is below another one's floor has to come up to it."""
    floors: dict[int, int] = {}
    for standing in standings.values():
        for partition, floor in standing.floors.items():
            if partition not in fixed and partition in standing.checkpoints:
                floors[partition] = max(floors.get(partition, -1), floor)
    late = _late(names, floors, standings)
    if late:
        lowest = {partition: min(standings[name].applied(partition) for name in names) for partition in floors}
        problem = _below_floor(lowest, standings)
        assert problem is not None, "an index is below a floor"
        raise Behind(late, floors, problem)


def _late(names: Sequence[str], wanted: Positions, standings: Mapping[str, Standing]) -> list[str]:
    return [
        name
        for name in names
        if any(standings[name].applied(partition) < position for partition, position in wanted.items())
    ]


def _lagging(path: str, names: Sequence[str], wanted: Positions, standings: Mapping[str, Standing]) -> AtomlogError:
    details = [
        {
            "path": path,
            "code": "INDEX_LAGGING",
            "message": f"{name} has applied {standings[name].applied(partition)} of {position}",
            "index": name,
            "partition": partition,
            "position": standings[name].applied(partition),
            "wanted": position,
        }
        for name in names
        for partition, position in wanted.items()
        if standings[name].applied(partition) < position
    ]
    told = "; ".join(f"partition {detail['partition']}: {detail['message']}" for detail in details)
    return fail("INDEX_LAGGING", f"{told}; repeat, or ask for less", details=details, retry_after_ms=RETRY_MS)


def _below_floor(positions: Positions, standings: Mapping[str, Standing]) -> AtomlogError | None:
    """CONSISTENCY_UNAVAILABLE about the first index that cannot be read as of these positions."""
    for name, standing in standings.items():
        if not standing.has_floor:
            continue
        for partition, position in positions.items():
            floor = standing.floors[partition]
            if floor > position:
                message = f"{name} can be read as of position {floor} of partition {partition} at the earliest"
                message = f"{message}, and this read is as of {position}"
                place = {"index": name, "partition": partition, "position": position, "floor": floor}
                code = "CONSISTENCY_UNAVAILABLE"
                return fail(code, message, details=[{"path": "at", "code": code, "message": message, **place}])
    return None
