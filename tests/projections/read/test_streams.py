"""A stream that is left anywhere and taken up again gives every item once, and so do several side by side."""

from hypothesis import given
from hypothesis import strategies as st

from atomlog.projections.read.streams import CHUNK_MIN, Fetch, Place, Stream


def pages_of(items: list[int], page: int) -> Fetch[int]:
    """An index over numbers: `after` is the text of the last one; a page may be shorter than asked."""

    def fetch(after: bytes | None, limit: int) -> tuple[list[int], bytes | None]:
        left = [item for item in items if after is None or item > int(after)]
        found = left[: min(limit, page)]
        return found, str(found[-1]).encode() if len(found) < len(left) else None

    return fetch


@given(
    count=st.integers(0, 70),
    page=st.integers(1, 40),
    chunk=st.integers(1, 30),
    stops=st.lists(st.integers(0, 25), max_size=12),
)
def test_every_item_comes_once_wherever_the_stream_is_left(count: int, page: int, chunk: int, stops: list[int]) -> None:
    # A page that is shorter than what is passed at once would lose its place: an index gives whole pages.
    fetch = pages_of(list(range(count)), max(page, CHUNK_MIN))
    taken: list[int] = []
    place = Place()
    for stop in [*stops, count]:
        stream = Stream(fetch, Place.from_json(place.to_json()), chunk=chunk)
        for _ in range(stop):
            item = stream.peek()
            if item is None:
                break
            stream.take()
            taken.append(item)
        place = stream.place
    assert taken == list(range(count))


def test_a_stream_that_ended_stays_at_its_end_however_often_it_is_taken_up() -> None:
    fetch = pages_of(list(range(10)), 100)
    stream = Stream(fetch, Place(), chunk=5)
    while stream.peek() is not None:
        stream.take()
    for _ in range(3):
        stream = Stream(fetch, stream.place, chunk=5)
        assert stream.peek() is None
        assert stream.place == Place(None, 10)


def test_a_place_never_lies_more_than_a_chunk_behind_a_key_of_the_index() -> None:
    fetch = pages_of(list(range(400)), 1_000)
    place = Place()
    for _ in range(40):
        stream = Stream(fetch, place, chunk=20)
        for _ in range(10):
            stream.take()
        place = stream.place
        assert place.taken <= 20
    assert Stream(fetch, place, chunk=20).peek() is None
