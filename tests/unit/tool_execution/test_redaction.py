from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.tool_execution.custom.redaction import Redactor

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
        json.dumps(VALUE, ensure_ascii=False),
        repr(VALUE),
    ],
)
def test_a_secret_is_found_in_its_usual_forms(shown: str) -> None:
    assert "[secret KEY]" in Redactor(SECRETS).text(f"at {shown} there")


def test_a_secret_that_holds_another_is_replaced_whole() -> None:
    assert Redactor(SECRETS).text(f"{VALUE}5 {VALUE}") == "[secret LONGER] [secret KEY]"


def test_values_are_searched_through_and_through() -> None:
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
    """All that a value says; its true, null and brackets say no secret, whatever it is."""
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


@given(st.text(min_size=4) | st.sampled_from(["true", "null", "[], "]), st.data())
def test_no_secret_is_left_wherever_it_stands(secret: str, data: st.DataObject) -> None:
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
