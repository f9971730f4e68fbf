"""Redaction of secrets in texts and values."""

from __future__ import annotations

import base64
import html
import json
import math
import string
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.shared.redaction import Redactor, key_redactor

VALUE = "pä ss\"wo'rd/+\n1234"
SECRETS = {"KEY": VALUE, "LONGER": VALUE + "5", "NUMBER": "31337"}


@pytest.mark.parametrize(
    "shown",
    [
        VALUE,
        quote(VALUE, safe=""),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
        json.dumps(VALUE, ensure_ascii=False),
        json.dumps(VALUE),
        json.dumps(json.dumps(VALUE)),
        json.dumps({"error": json.dumps({"key": VALUE}, ensure_ascii=False)}, ensure_ascii=False),
        # As PHP, Go and .NET write JSON.
        json.dumps(VALUE).replace("/", "\\/"),
        json.dumps(VALUE).replace("'", "\\u0027").replace("+", "\\u002b"),
        json.dumps(VALUE).replace("'", "\\u0027").replace("+", "\\u002B"),
        html.escape(VALUE),
        repr(VALUE),
    ],
)
def test_a_secret_is_found_in_its_usual_forms(shown: str) -> None:
    assert "[secret KEY]" in Redactor(SECRETS).text(f"at {shown} there")


@pytest.mark.parametrize("stored", ["hunter2-key\n", " hunter2-key", "hunter2-key\r\n"])
def test_a_secret_that_was_stored_with_space_around_it_is_found_without(stored: str) -> None:
    redactor = Redactor({"KEY": stored})
    assert redactor.text("key=hunter2-key") == "key=[secret KEY]"
    assert redactor.text(json.dumps({"key": stored})) == '{"key": "[secret KEY]"}'
    # A shorter remainder would occur in ordinary words.
    assert Redactor({"KEY": " a\n"}).text("banana") == "banana"


def test_a_secret_that_contains_another_is_replaced_as_a_whole() -> None:
    assert Redactor(SECRETS).text(f"{VALUE}5 {VALUE}") == "[secret LONGER] [secret KEY]"


def test_nested_values_are_redacted() -> None:
    value = {VALUE: [VALUE, 31337, 1.5, True, None, {"a": "b"}]}
    assert Redactor(SECRETS).value(value) == {
        "[secret KEY]": ["[secret KEY]", "[secret NUMBER]", 1.5, True, None, {"a": "b"}]
    }


def test_without_secrets_everything_stays() -> None:
    assert Redactor({}).value({"a": [1, "b"]}) == {"a": [1, "b"]}
    assert Redactor({}).text("[secret KEY]") == "[secret KEY]"


json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


def texts(value: Any) -> Iterator[str]:
    """Returns all texts in a value."""
    match value:
        case dict():
            for name, item in value.items():
                yield name
                yield from texts(item)
        case list():
            for item in value:
                yield from texts(item)
        case bool() | None:
            return
        case _:
            yield str(value)


@security_examples
@given(st.text(min_size=4) | st.sampled_from(["true", "null", "[], "]), st.data())
def test_no_secret_is_left_at_any_place(secret: str, data: st.DataObject) -> None:
    around = st.text().map(lambda text: f"{text}{secret}{text}")
    value = data.draw(
        st.recursive(
            st.one_of(json_values, st.just(secret), around),
            lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.just(secret), inner)),
            max_leaves=6,
        )
    )
    if secret not in "[secret K]":
        for text in texts(Redactor({"K": secret}).value(value)):
            assert secret not in text.replace("[secret K]", "\0")


# Keys are random: no part of a key occurs in it twice.
KEYS = st.tuples(
    st.permutations(string.ascii_letters + "0123456789/+-_%"), st.integers(24, 60)
).map(lambda drawn: "".join(drawn[0])[: drawn[1]])


@security_examples
@given(KEYS, st.floats(0.5, 1), st.text("xyz .", max_size=30))
def test_a_truncated_key_is_redacted(key: str, share: float, around: str) -> None:
    size = max(12, math.ceil(len(key) * share))
    redactor = Redactor({"KEY": key})
    assert redactor.text(around + key[:size]) == f"{around}[secret KEY]"
    assert redactor.text(key[-size:] + around) == f"[secret KEY]{around}"
    assert redactor.text(f"{around}{key[:size]}...") == f"{around}[secret KEY]..."


@security_examples
@given(KEYS, st.text("abc", max_size=7))
def test_a_key_in_basic_authentication_is_redacted(key: str, user: str) -> None:
    packed = base64.b64encode(f"{user}:{key}".encode()).decode()
    redacted = Redactor({"KEY": key}).text(f"Authorization: Basic {packed}")
    assert "[secret KEY]" in redacted
    for start in range(len(packed) - 16):
        assert start < 12 or packed[start : start + 16] not in redacted


@security_examples
@given(KEYS, st.text(max_size=100))
def test_text_without_the_key_stays(key: str, text: str) -> None:
    redactor = Redactor({"KEY": key})
    if redactor.text(text) != text:
        assert any(form[:12] in text or form[-12:] in text for form in redactor._longest_first)


def test_placeholders_and_empty_keys_are_not_redacted() -> None:
    for key in ("", "none", "x"):
        assert key_redactor(key).text("none of x") == "none of x"


def test_password_of_an_address_is_a_secret() -> None:
    redactor = key_redactor("", "https://me:h%2Fidden-word@models.example/v1")
    for shown in ("h/idden-word", "h%2Fidden-word", "h%2fidden-word"):
        assert redactor.text(f"at {shown}.") == "at [secret password of the address]."


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("abc123", "abc123"),
        ("0123456789abcdefghij", "0123456789ab"),
        ("0123456789abcdefghij", "89abcdefghij"),
    ],
)
def test_the_shortest_texts_that_can_hold_a_secret_are_searched(secret: str, shown: str) -> None:
    assert Redactor({"KEY": secret}).value({shown: [shown]}) == {"[secret KEY]": ["[secret KEY]"]}
