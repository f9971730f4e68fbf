"""Page tokens."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.api.common.v1 import message_pb2
from strata.protocol.errors import InvalidArgumentError, Reason
from strata.shared.db import (
    Page,
    decode_page_token,
    encode_page_token,
    page_limit,
    rows_that_fit,
)
from strata.shared.db.paging import PAGE_BYTES, approximate_bytes

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]))
KEYS = st.lists(TEXTS | NUMBERS | TIMES, max_size=4)


def _kinds(key: list[object]) -> list[type]:
    return [datetime if isinstance(part, datetime) else type(part) for part in key]


@security_examples
@given(TEXTS, KEYS)
def test_a_token_is_decoded_to_its_key(scope: str, key: list[str | int | datetime]) -> None:
    token = encode_page_token(scope, key)

    assert decode_page_token(scope, token, _kinds(list(key))) == tuple(key)
    assert token.isascii()
    assert not set(token) & set("=+/ ")


@security_examples
@given(KEYS, TEXTS, TEXTS)
def test_a_token_of_another_list_is_refused(
    key: list[str | int | datetime], scope: str, other: str
) -> None:
    token = encode_page_token(scope, key)
    if scope == other:
        return
    with pytest.raises(InvalidArgumentError):
        decode_page_token(other, token, _kinds(list(key)))


@security_examples
@given(st.text(min_size=1) | st.binary(min_size=1).map(lambda b: base64.b64encode(b).decode()))
def test_an_invalid_token_is_an_invalid_argument(token: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        decode_page_token("list", token, [str, int])

    assert refused.value.reason is Reason.INVALID_PAGE_TOKEN
    assert [violation.field for violation in refused.value.violations] == ["page_token"]


def _forged(*fields: object) -> str:
    genuine = encode_page_token("list", [])
    head = json.loads(base64.urlsafe_b64decode(genuine + "=" * (-len(genuine) % 4)))
    return base64.urlsafe_b64encode(json.dumps([*head, *fields]).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        (["a\0b"], [str]),
        (["\ud800"], [str]),
        ([1], [str]),
        (["1"], [int]),
        ([True], [int]),
        ([2**63], [int]),
        ([1.5], [int]),
        (["yesterday"], [datetime]),
        (["2024-01-01T00:00:00"], [datetime]),
        ([None], [datetime]),
        (["a"], [str, str]),
        (["a", "b"], [str]),
        ([["a"]], [str]),
    ],
)
def test_a_forged_key_of_a_wrong_type_is_refused(fields: list[object], kinds: list[type]) -> None:
    with pytest.raises(InvalidArgumentError):
        decode_page_token("list", _forged(*fields), kinds)


def test_a_very_long_token_is_refused_without_decoding() -> None:
    with pytest.raises(InvalidArgumentError):
        decode_page_token("list", "A" * 100_000, [str])


def test_without_a_token_the_first_page_is_returned() -> None:
    assert decode_page_token("list", "", [str]) is None


@pytest.mark.parametrize(("asked", "expected"), [(0, 50), (1, 1), (1000, 1000), (5000, 1000)])
def test_page_sizes_have_a_default_and_a_ceiling(asked: int, expected: int) -> None:
    assert page_limit(asked) == expected


def test_a_negative_page_size_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        page_limit(-1)
    assert refused.value.violations[0].field == "page_size"


@security_examples
@given(st.lists(st.integers(), max_size=30), st.integers(1, 10))
def test_all_pages_together_are_the_list(values: list[int], limit: int) -> None:
    rows = list(enumerate(values))
    listed: list[tuple[int, int]] = []
    token = ""
    while True:
        key = decode_page_token("list", token, [int])
        after = -1 if key is None else key[0]
        assert isinstance(after, int)
        queried = [row for row in rows if row[0] > after][: limit + 1]
        page = Page.cut(queried, limit, "list", lambda row: [row[0]])
        listed += page.rows
        token = page.next_page_token
        if not token:
            break
        assert len(page.rows) == limit

    assert listed == rows


@security_examples
@given(st.lists(st.integers(0, 400), min_size=1), st.integers(1, 20), st.integers(1, 1_000))
def test_a_page_is_bounded_in_bytes_and_has_at_least_one_row(
    sizes: list[int], limit: int, most: int
) -> None:
    rows = ["x" * size for size in sizes]
    count = rows_that_fit(rows, limit, max_bytes=most)
    assert 1 <= count <= min(limit, len(rows))
    fits = [sum(map(approximate_bytes, rows[: n + 1])) <= most for n in range(len(rows))]
    assert count == 1 or fits[count - 1]
    assert count in (limit, len(rows)) or not fits[count]


def test_large_rows_are_listed_over_several_pages() -> None:
    rows = [f"{number}" + "ä" * 500_000 for number in range(10)]
    seen: list[str] = []
    while True:
        page = Page.cut(rows[len(seen) : len(seen) + 8], 7, "scope", lambda row: [row[:1]])
        assert len("".join(page.rows).encode()) <= PAGE_BYTES
        seen += page.rows
        if not page.next_page_token:
            break
        assert decode_page_token("scope", page.next_page_token, [str]) == (seen[-1][:1],)
    assert seen == rows


@security_examples
@given(st.text(), st.binary(), st.lists(st.text()), st.dictionaries(st.text(), st.text()))
def test_the_estimated_size_of_a_row_is_at_least_that_of_its_message(
    text: str, data: bytes, items: list[str], members: dict[str, str]
) -> None:
    wire = message_pb2.MessageInput(
        name=text.encode("utf-8", "replace").decode(),
        parts=[message_pb2.Part(image=message_pb2.ImagePart(data=data))],
        client_message_id="".join(items).encode("utf-8", "replace").decode(),
    )
    assert approximate_bytes(_Row(text, data, items, members)) + 40 >= wire.ByteSize()


@dataclass
class _Row:
    text: str
    data: bytes
    items: list[str]
    members: dict[str, str]
