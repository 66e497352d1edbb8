"""At which position of each partition a read happens.

`snapshot`: the lowest that every index of the plan has applied. `version_pinned`: the lowest of ids, relations and
postings; vectors may be behind and then only propose candidates. A position or time that was asked for is taken
exactly, after waiting for the indexes; it is never replaced by another one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Clock, Log
from atomlog.kernel.times import format_time
from atomlog.projections.read.indexes import VECTORS, CatchUp, IndexSet, Standing, standing_of

SNAPSHOT: Final = "snapshot"
VERSION_PINNED: Final = "version_pinned"
MODES: Final = (SNAPSHOT, VERSION_PINNED)
RETRY_MS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How fresh or how old. `at`: one number = in the partition `home` of what is asked for, or partition → position.

    `deadline_us` is a time of the clock's `monotonic_us`.
    """

    mode: str
    at: int | Positions | None = None
    as_of_us: int | None = None
    at_least: Positions | None = None
    deadline_us: int

    @property
    def path(self) -> str:
        """Which part asks for a position."""
        return "as_of" if self.as_of_us is not None else "at_least" if self.at is None else "at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The positions of a read, and where the indexes of its plan stood. `fixed`: as the caller or a cursor said."""

    positions: Mapping[int, int]
    standings: Mapping[str, Standing]
    ends: Mapping[int, int]

    def lag(self) -> dict[str, dict[int, int]]:
        """Records each index is behind the log."""
        return {
            name: {
                partition: max(self.ends[partition] - checkpoint.position, 0)
                for partition, checkpoint in standing.checkpoints.items()
            }
            for name, standing in self.standings.items()
        }


@dataclass(slots=True)
class Chooser:
    """Chooses the positions of one read. `plan` names the indexes it needs."""

    indexes: IndexSet
    plan: Sequence[str]
    log: Log
    clock: Clock
    catch_up: CatchUp

    async def choose(self, asked: Asked, home: Callable[[], Sequence[int | None]]) -> Chosen:
        """`home`: finds the partitions of the atoms asked for, None for one that is unknown.

        Raises INVALID_INPUT, INDEX_LAGGING, CONSISTENCY_UNAVAILABLE.
        """
        # 1. What the caller fixed: positions of some or all partitions.
        fixed = await self._fixed(asked, home)
        # 2. Wait until every index that must be there has applied what is fixed, asked for at least, or a floor.
        base = self._base(asked.mode)
        self._check_at_least(asked.at_least or {})
        wanted = dict(asked.at_least or {}) | fixed
        standings = await self._standing_at(base, wanted, asked)
        standings = await self._above_floors(base, fixed, standings, asked)
        # 3. Elsewhere: the lowest applied position of the indexes that must agree.
        positions = {
            partition: fixed[partition]
            if partition in fixed
            else min(standings[name].applied(partition) for name in base)
            for partition in range(self.log.partitions)
        }
        # 4. Nobody is asked below its floor.
        _check_floors(positions, standings)
        ends = {partition: await self.log.end(partition) for partition in positions}
        return Chosen(positions=positions, standings=standings, ends=ends)

    async def again(self, positions: Positions, mode: str, deadline_us: int) -> Chosen:
        """The positions of an earlier page, or of a receipt."""
        asked = Asked(mode=mode, at=positions, deadline_us=deadline_us)
        standings = await self._standing_at(self._base(mode), positions, asked)
        _check_floors(positions, standings)
        ends = {partition: await self.log.end(partition) for partition in positions}
        return Chosen(positions=dict(positions), standings=standings, ends=ends)

    def _base(self, mode: str) -> list[str]:
        return [name for name in self.plan if mode == SNAPSHOT or name != VECTORS]

    def _standings(self) -> dict[str, Standing]:
        return {name: standing_of(index) for name, index in self.indexes.named(self.plan).items()}

    async def _fixed(self, asked: Asked, home: Callable[[], Sequence[int | None]]) -> dict[int, int]:
        if asked.as_of_us is not None:
            return await self._as_of(asked.as_of_us, asked)
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
        if not _is_integer(position) or position < -1:
            raise invalid(path, f"{shown(position)} is no position; write a number from -1 on")

    async def _check_position(self, partition: int, position: int) -> None:
        self._check_shape("at", partition, position)
        end = await self.log.end(partition)
        if position >= end:
            raise invalid("at", f"{position} is beyond the end of partition {partition}; its last record is {end - 1}")

    async def _as_of(self, time_us: int, asked: Asked) -> dict[int, int]:
        """The last position at or before a time, in every partition; ids must have all that was recorded by then."""
        now_us = self.clock.now_us()
        if time_us > now_us:
            raise invalid("as_of", f"{format_time(time_us)} is later than now, {format_time(now_us)}")
        ids = self.indexes.ids
        behind: dict[int, int] = {}
        for partition in range(self.log.partitions):
            last_us = ids.last_time_us(partition)
            if last_us is None or last_us <= time_us:
                behind[partition] = await self.log.end(partition) - 1
        await self._standing_at(["ids"], behind, asked)
        return {partition: ids.position_at(partition, time_us) for partition in range(self.log.partitions)}

    async def _standing_at(self, names: Sequence[str], wanted: Positions, asked: Asked) -> dict[str, Standing]:
        """Where the indexes stand once these have applied what is wanted; INDEX_LAGGING when they do not in time."""
        standings = self._standings()
        late = _late(names, wanted, standings)
        if late:
            await self.catch_up(late, wanted, asked.deadline_us)
            standings = self._standings()
            if _late(names, wanted, standings):
                raise _lagging(asked.path, names, wanted, standings)
        return standings

    async def _above_floors(
        self, base: Sequence[str], fixed: Positions, standings: dict[str, Standing], asked: Asked
    ) -> dict[str, Standing]:
        """Where nothing is fixed, an index that is below another one's floor is waited for."""
        floors: dict[int, int] = {}
        for standing in standings.values():
            for partition, floor in standing.floors.items():
                if partition not in fixed:
                    floors[partition] = max(floors.get(partition, -1), floor)
        late = _late(base, floors, standings)
        if not late:
            return standings
        await self.catch_up(late, floors, asked.deadline_us)
        return self._standings()


def parse_at(value: object) -> int | dict[int, int] | None:
    """`at` from JSON: a position, or an object of partition to position (its keys may be text)."""
    if value is None or _is_integer(value):
        return value
    if not isinstance(value, Mapping) or not value:
        raise invalid("at", "must be a position, or an object of partition to position")
    positions: dict[int, int] = {}
    for partition, position in value.items():
        text = str(partition)
        if not text.isascii() or not text.isdigit() or not _is_integer(position):
            raise invalid("at", f"{text[:40]!r} to {position!r} is no partition with its position")
        positions[int(text)] = position
    return positions


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


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


def _check_floors(positions: Positions, standings: Mapping[str, Standing]) -> None:
    for name, standing in standings.items():
        for partition, position in positions.items():
            floor = standing.floors[partition]
            if floor > position:
                message = f"{name} can be read as of position {floor} of partition {partition} at the earliest"
                message = f"{message}, and this read is as of {position}"
                place = {"index": name, "partition": partition, "position": position, "floor": floor}
                code = "CONSISTENCY_UNAVAILABLE"
                raise fail(code, message, details=[{"path": "at", "code": code, "message": message, **place}])
