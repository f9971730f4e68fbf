"""Expiry times of keys as the commands read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from strata.cli.administration import expiry
from strata.cli.failures import UsageError
from strata.cli.times import parse_end

NOW = datetime(2026, 7, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90d", NOW + timedelta(days=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("4 w", NOW + timedelta(weeks=4)),
        ("2027-01-31T00:00:00+00:00", datetime(2027, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_key_expires_after_a_span_or_at_a_time(text: str, expected: datetime) -> None:
    assert parse_end(text, NOW) == expected


def test_without_a_time_a_key_never_expires() -> None:
    assert expiry("") is None


@pytest.mark.parametrize("text", ["2020-01-01", "15m ago", "soon", "999999w", "0d"])
def test_an_invalid_or_past_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_end(text, NOW)
