"""Random histories for hypothesis: few atoms, many of everything that can happen to them."""

from collections.abc import Sequence

from hypothesis import strategies as st

from atomlog.kernel.times import DAY_US
from atomlog.schemas.revision import Slot, ValidTime
from tests.support.batches import START_US, Change, LogBuilder, atom_id, create, retire, revise, slot

SPACES = ("notes", "tasks")
GROUPS = ("g0", "g1", "g2")
NAMES = (*GROUPS, *(f"a{index}" for index in range(7)))
ROLES = ("about", "ab", "group", "member")
ORDER_KEYS = (b"", b"\x00", b"\x00\xff", b"\x01", b"a", b"a\x00", b"a\x00\x01", b"ab", b"\xff" * 64)
MEMBERSHIPS = tuple(f"m{index}" for index in range(8))


@st.composite
def slots(draw: st.DrawFn) -> list[Slot]:
    """Of an ordinary atom; the same slot may stand twice."""
    one = st.builds(
        slot,
        st.sampled_from(ROLES),
        st.sampled_from(NAMES),
        required=st.booleans(),
        order_key=st.sampled_from(ORDER_KEYS[:2]),
        at=st.sampled_from((None, b"\x05" * 16)),
    )
    return draw(st.lists(one, max_size=3))


@st.composite
def membership_slots(draw: st.DrawFn) -> list[Slot]:
    """Mostly one group and one member; sometimes two groups, a third slot, or an include that states nothing."""
    groups = draw(st.lists(st.sampled_from(GROUPS), min_size=1, max_size=2, unique=True))
    member = slot("member", draw(st.sampled_from(NAMES)), order_key=draw(st.sampled_from(ORDER_KEYS)))
    extra = draw(
        st.sampled_from(([], [], [slot("about", "a0")], [slot("member", "a1", at=b"\x07" * 16, include=True)]))
    )
    return [*extra, *(slot("group", group) for group in groups), member]


@st.composite
def change(draw: st.DrawFn, log: LogBuilder, name: str) -> Change:
    """What may happen next to an atom."""
    is_membership = name in MEMBERSHIPS
    new_slots = draw(membership_slots() if is_membership else slots())
    day = draw(st.integers(-400, 400))
    valid = ValidTime(from_us=START_US + day * DAY_US, to_us=None) if day % 3 == 0 else None
    if atom_id(name) not in log.heads:
        schema = "membership" if is_membership else draw(st.sampled_from(("source", "statement", "sour")))
        return create(name, schema=schema, slots=new_slots, valid_time=valid)
    match draw(st.integers(0, 4)):
        case 0:
            return retire(name)
        case 1:
            return revise(name)
        case _:
            return revise(name, slots=new_slots, valid_time=valid)


@st.composite
def histories(draw: st.DrawFn, partitions: int = 1, records: int = 12) -> Sequence[LogBuilder]:
    """One log for each partition; an atom lives in one of them, whatever it refers to."""
    logs = [LogBuilder(partition=partition, partitions=partitions) for partition in range(partitions)]
    for _ in range(draw(st.integers(1, records))):
        log = draw(st.sampled_from(logs))
        match draw(st.integers(0, 9)):
            case 0:
                log.void()
            case 1:
                log.fence()
            case 2:
                log.claim()
            case _:
                at_home = [name for name in (*NAMES, *MEMBERSHIPS) if ord(name[1]) % partitions == log.partition]
                names = draw(st.lists(st.sampled_from(at_home), min_size=1, max_size=6, unique=True))
                space = SPACES[log.partition] if partitions > 1 else draw(st.sampled_from(SPACES))
                log.batch(space, [draw(change(log, name)) for name in names])
    return logs
