"""Times: RFC 3339 with an offset outside, microseconds UTC inside."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.times import TIME_MAX_US, TIME_MIN_US, format_time, parse_time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.integers(TIME_MIN_US, TIME_MAX_US))
def test_a_time_comes_back_from_its_text(time_us: int) -> None:
    text = format_time(time_us)
    assert len(text) == len("2026-03-01T00:00:00.000000Z")
    assert parse_time(text, "t") == time_us


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets))
def test_an_offset_is_reckoned_in(moment: datetime) -> None:
    assert parse_time(moment.isoformat(), "t") == (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-03-01T09:00:00+09:00", "2026-03-01T00:00:00.000000Z"),
        ("2026-03-01T00:00:00Z", "2026-03-01T00:00:00.000000Z"),
        ("2026-03-01t00:00:00z", "2026-03-01T00:00:00.000000Z"),
        ("2026-03-01 00:00:00-00:00", "2026-03-01T00:00:00.000000Z"),
        ("2026-02-28T19:30:00.5-04:30", "2026-03-01T00:00:00.500000Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
        ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999Z"),
        ("2026-03-01T00:00:00.1234567890123Z", "2026-03-01T00:00:00.123456Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000000Z"),
    ],
)
def test_a_time_is_shown_in_utc(text: str, shown: str) -> None:
    assert format_time(parse_time(text, "t")) == shown


@pytest.mark.parametrize("text", ["2026-03-01T09:00:00", "2026-03-01 09:00:00.5"])
def test_a_naive_time_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(InvalidError, match=r"add Z or one like \+09:00") as raised:
        parse_time(text, "changes[0].valid_time.from")
    assert raised.value.details[0]["path"] == "changes[0].valid_time.from"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-03-01",
        "2026-03-01T09:00Z",
        "2026-13-01T00:00:00Z",
        "2025-02-29T00:00:00Z",
        "2026-03-01T24:00:00Z",
        "2026-03-01T23:59:60Z",
        "2026-03-01T00:00:00+24:00",
        "2026-03-01T00:00:00+09:60",
        "2026-03-01T00:00:00+0900",
        "20260301T000000Z",
        "2026-03-01T00:00:00.Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-03-01T00:00:00Z",
        " 2026-03-01T00:00:00Z",
        "2026-03-01T00:00:00Z\n",
        "2026-03-01T00:00:00." + "1" * 100 + "Z",
        "x" * 1_000_000,
        0,
        1.5,
        None,
        True,
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(InvalidError):
        parse_time(text, "t")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+09:00", "9999-12-31T23:59:59-09:00"])
def test_a_time_that_could_not_be_shown_in_utc_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="years 1 to 9999"):
        parse_time(text, "t")
